"""Conversion of linear layers to matrix products of FP8, MXFP8 or NVFP4 inputs, by torchao."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from trainyard.config.training import TrainerConfig
from trainyard.config.training.low_precision import converted_layers
from trainyard.config.training.models import DecoderConfig

_log = logging.getLogger(__name__)
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # it warns about enums that torchao registers

# The signs of the random Hadamard transform, the same on all ranks: one vector is sufficient for all layers (NVIDIA,
# Pretraining Large Language Models with NVFP4, arXiv 2509.25149, appendix E).
_SIGNS = (1, -1, 1, 1, -1, 1, -1, -1, 1, 1, 1, -1, -1, 1, -1, -1)


class NVFP4Linear(nn.Linear):
    """A linear layer with NVFP4 inputs of its three matrix products.

    torchao's layer draws the signs of the Hadamard transform on each rank; here they are _SIGNS.
    """

    product: Callable[..., Tensor]

    def forward(self, input: Tensor) -> Tensor:
        """Return the output in bf16."""
        return self.product(input, self.weight, self.bias, sign_vector=_SIGNS)


def convert_linear_layers(blocks: dict[str, nn.Module], config: TrainerConfig, *, on_gpu: bool) -> None:
    """Convert the blocks' large linear layers to the precision of the configuration, in place.

    Without a GPU, as in a plan, torchao computes mxfp8 in bf16, and nvfp4 is not applied: torchao has GPU kernels only.
    """
    assert isinstance(config.model, DecoderConfig), "the configuration is validated"
    settings, model = config.low_precision, config.model
    names = converted_layers(model, settings, config.parallel.tensor).keys()
    in_bf16 = {f"layers.{model.layers - 1 - number}" for number in range(settings.bf16_blocks)}
    count = 0
    for block_name, block in blocks.items():
        if block_name in in_bf16:
            continue
        paths = [path for path, _ in block.named_modules() if path.rpartition(".")[2] in names]
        count += len(paths)
        if config.precision == "float8":
            _to_float8(block, paths, settings.float8_recipe)
            continue
        for path in paths:
            layer = block.get_submodule(path)
            assert isinstance(layer, nn.Linear), "converted_layers has linear layers"
            if config.precision == "mxfp8":
                block.set_submodule(path, mxfp8_layer(layer, on_gpu=on_gpu))
            elif on_gpu:
                block.set_submodule(path, nvfp4_layer(layer))
    _log.info("precision %s: %d linear layers of %d blocks", config.precision, count, len(blocks))


def mxfp8_layer(layer: nn.Linear, *, on_gpu: bool) -> nn.Linear:
    """Return a layer with the parameters of `layer` and products in mxfp8, without a GPU in bf16 of rounded values."""
    with _import_of_prototypes():
        from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear
        from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    preference = KernelPreference.AUTO if on_gpu else KernelPreference.EMULATED
    return _with_parameters_of(layer, MXFP8Linear, kernel_preference=preference)


def nvfp4_layer(layer: nn.Linear) -> nn.Linear:
    """Return a layer with the parameters of `layer` and products in nvfp4, for GPUs of compute capability 10.x."""
    with _import_of_prototypes():
        from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_linear

    converted = _with_parameters_of(layer, NVFP4Linear)
    converted.product = nvfp4_linear
    return converted


def _with_parameters_of(layer: nn.Linear, kind: Callable[..., nn.Linear], **options: Any) -> nn.Linear:
    sizes = layer.in_features, layer.out_features
    converted = kind(*sizes, bias=layer.bias is not None, device="meta", **options)
    converted.weight, converted.bias = layer.weight, layer.bias
    return converted


@contextmanager
def _import_of_prototypes() -> Iterator[None]:
    """Let torchao 0.18 import its kernels: the tuning of one has a key that is no argument, an error in triton 3.9."""
    if find_spec("triton") is None:
        yield
        return
    import triton

    autotune = triton.autotune

    def of_arguments(configs: Any, key: list[str], **options: Any) -> Callable[[Any], Any]:
        return lambda kernel: autotune(configs, [name for name in key if name in kernel.arg_names], **options)(kernel)

    triton.autotune = of_arguments
    try:
        yield
    finally:
        triton.autotune = autotune


def _to_float8(block: nn.Module, paths: list[str], recipe: str) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(block, config=config, module_filter_fn=lambda _, path: path in paths)
