"""Export of int8 weights by torchao: each row of a linear layer's weight has a scale; activations are unchanged."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from trainer.export.safetensors_export import (
    MAX_FILE_BYTES,
    Rename,
    named_tensors,
    plan_files,
    upload_tensors,
    write_index,
)
from trainer.storage import Storage


@dataclass(frozen=True)
class Int8Report:
    """Contents of `report.json` in the folder of the int8 weights."""

    bytes: int  # of the tensors
    full_bytes: int
    loss: float | None  # validation loss with int8 weights, nats; None: not measured
    full_loss: float | None  # validation loss with the original weights
    matrices: int  # number of linear layers with int8 weights


def export_int8(
    model: nn.Module,
    config: dict[str, object],
    storage: Storage,
    *,
    evaluate: Callable[[nn.Module], float] | None = None,
    full_loss: float | None = None,
    rename: Rename = lambda name: name,
    folder: str = "export/int8/",
    limit: int = MAX_FILE_BYTES,
) -> Int8Report:
    """Quantize a whole model's linear layers in place, write them, and report size and loss. Called on one rank.

    `evaluate` returns a model's validation loss; it is called before and after quantization, or only after if
    `full_loss` is set, which must then be of the same samples. torchao.prototype.safetensors loads the written files
    into its tensors. Raises OSError if the storage fails.
    """
    full_bytes = _bytes(named_tensors(model))
    if evaluate and full_loss is None:
        full_loss = evaluate(model)
    matrices = quantize_linear_layers(model)
    loss = evaluate(model) if evaluate else None

    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors = {rename(name): tensor.detach() for name, tensor in named_tensors(model).items()}
    flat, metadata = flatten_tensor_state_dict({name: getattr(t, "data", t) for name, t in tensors.items()})
    (files,) = plan_files([{name: _size(tensor) for name, tensor in flat.items()}], limit)
    for file in files:
        content = {name: flat[name].cpu().contiguous() for name in file.tensors}
        upload_tensors(content, storage, folder + file.name, metadata)
    report = Int8Report(_bytes(flat), full_bytes, loss, full_loss, matrices)
    write_index(storage, folder, [files], report.bytes, config)
    storage.write(f"{folder}report.json", json.dumps(asdict(report), indent=1).encode())
    return report


def quantize_linear_layers(model: nn.Module) -> int:
    """Quantize linear layers to int8 in place and return their number.

    A weight that is also an embedding is not quantized: the file would contain it twice.
    """
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # torchao registers types in a deprecated way
    from torchao.quantization import quantize_

    names = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    linear = {id(layer) for layer in model.modules() if isinstance(layer, nn.Linear) and names[id(layer.weight)] == 1}
    quantize_(model, int8_quantization_config(), lambda module, _: id(module) in linear)
    return len(linear)


def int8_quantization_config() -> Any:
    """Return torchao's quantization settings."""
    from torchao.quantization import Int8WeightOnlyConfig

    # torchao's settings of torch.compile are for inference, not for the training process.
    return Int8WeightOnlyConfig(set_inductor_config=False)


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(_size(tensor) for tensor in tensors.values())


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
