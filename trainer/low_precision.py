"""Linear layers whose matrix products have 8 or 4 bits, by torchao."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from trainyard.config.training import TrainerConfig
from trainyard.config.training.config import LowPrecisionConfig
from trainyard.config.training.models import DecoderConfig

# The signs of the random Hadamard transform, the same on all ranks: one vector is sufficient for all layers (NVIDIA,
# Pretraining Large Language Models with NVFP4, arXiv 2509.25149, appendix E).
_SIGNS = (1, -1, 1, 1, -1, 1, -1, -1, 1, 1, 1, -1, -1, 1, -1, -1)


class NVFP4Linear(nn.Linear):
    """A linear layer whose three products have 4 bits: torchao's, without its buffers, which each rank would draw."""

    product: Callable[..., Tensor]

    def forward(self, input: Tensor) -> Tensor:
        """Return the output in bf16."""
        return self.product(input, self.weight, self.bias, sign_vector=_SIGNS)


def convert_linear_layers(blocks: dict[str, nn.Module], config: TrainerConfig, *, on_gpu: bool) -> None:
    """Convert the blocks' large linear layers to the precision of the configuration, in place.

    Without a GPU, as in a plan, torchao computes mxfp8 in bf16, and nvfp4 is not applied: torchao has GPU kernels only.
    """
    assert isinstance(config.model, DecoderConfig), "the configuration is validated"
    settings, tensor = config.low_precision, config.parallel.tensor
    in_bf16 = {f"layers.{config.model.layers - 1 - number}" for number in range(settings.bf16_blocks)}
    for block_name, block in blocks.items():
        if block_name in in_bf16:
            continue
        if config.precision == "float8":
            _to_float8(block, settings, tensor)
            continue
        layers = {name: part for name, part in block.named_modules() if _is_large(part, settings, tensor)}
        for name, layer in layers.items():
            assert isinstance(layer, nn.Linear), "it is large"
            if config.precision == "mxfp8":
                block.set_submodule(name, mxfp8_layer(layer, on_gpu=on_gpu))
            elif on_gpu:
                block.set_submodule(name, nvfp4_layer(layer))


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


def _to_float8(block: nn.Module, settings: LowPrecisionConfig, tensor: int) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = Float8LinearConfig.from_recipe_name(settings.float8_recipe)
    convert_to_float8_training(
        block, config=recipe, module_filter_fn=lambda module, _: _is_large(module, settings, tensor)
    )


def _is_large(module: nn.Module, settings: LowPrecisionConfig, tensor: int) -> bool:
    """Whether a layer is converted. `tensor`: ranks that divide its inputs or outputs, perhaps the smaller number."""
    features = min(module.in_features, module.out_features) if isinstance(module, nn.Linear) else 0
    return features // tensor >= settings.minimum_features
