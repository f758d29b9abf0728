"""Weights in 8 bits by torchao: each row of a linear layer's matrix has a scale; activations stay as they are."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from trainer.export.weights import LIMIT, named, plan, upload, write_index
from trainer.storage import Storage


@dataclass(frozen=True)
class Int8Report:
    """`report.json` beside the weights in 8 bits."""

    bytes: int  # of the tensors
    full_bytes: int
    loss: float | None  # held out, nats; None: not measured
    full_loss: float | None
    matrices: int  # linear layers whose weights are in 8 bits


def export_int8(
    model: nn.Module,
    config: dict[str, object],
    storage: Storage,
    *,
    evaluate: Callable[[nn.Module], float] | None = None,
    full_loss: float | None = None,
    prefix: str = "",
    folder: str = "export/int8/",
    limit: int = LIMIT,
) -> Int8Report:
    """Turn a whole model's linear layers to 8 bits in place, write them, and compare. For one rank. Raises OSError.

    `evaluate` gives a model's held-out loss; it is asked before and after, or after only where `full_loss` is given:
    then it must be of the same samples. torchao.prototype.safetensors reads what is written back into its tensors.
    """
    full_bytes = _bytes(named(model))
    if evaluate and full_loss is None:
        full_loss = evaluate(model)
    matrices = quantize(model)
    loss = evaluate(model) if evaluate else None

    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors = {name.removeprefix(prefix): tensor.detach() for name, tensor in named(model).items()}
    flat, metadata = flatten_tensor_state_dict({name: getattr(t, "data", t) for name, t in tensors.items()})
    (files,) = plan([{name: _size(tensor) for name, tensor in flat.items()}], limit)
    for file in files:
        content = {name: flat[name].cpu().contiguous() for name in file.tensors}
        upload(content, storage, folder + file.name, metadata)
    found = Int8Report(_bytes(flat), full_bytes, loss, full_loss, matrices)
    write_index(storage, folder, [files], found.bytes, config)
    storage.write(f"{folder}report.json", json.dumps(asdict(found), indent=1).encode())
    return found


def quantize(model: nn.Module) -> int:
    """In place. Returns how many matrices are now in 8 bits: one that is an embedding too stays as it is, for the file
    would hold it twice."""
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # torchao registers by a way that torch now has
    from torchao.quantization import quantize_

    names = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    linear = {id(each) for each in model.modules() if isinstance(each, nn.Linear) and names[id(each.weight)] == 1}
    quantize_(model, form(), lambda module, _: id(module) in linear)
    return len(linear)


def form() -> Any:
    """What torchao is to make of a matrix, as it knows it."""
    from torchao.quantization import Int8WeightOnlyConfig

    # Its settings of torch.compile are for whoever serves the model, not for the process that trained it.
    return Int8WeightOnlyConfig(set_inductor_config=False)


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(_size(tensor) for tensor in tensors.values())


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
