"""Precisions with matrix products of FP8, MXFP8 or NVFP4 inputs: settings, and which linear layers have them."""

from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.field_types import Integer, validation_error
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.config.training.parallel import ParallelConfig

LOW_PRECISIONS = ("float8", "mxfp8", "nvfp4")
# Sizes of a matrix product are multiples of 16 bytes (torch._scaled_mm), blocks with one scale (mxfp8), or tiles of
# torchao's kernels (nvfp4).
_MULTIPLES = {"float8": 16, "mxfp8": 32, "nvfp4": 128}


class LowPrecisionConfig(StrictModel):
    """Linear layers of the blocks in precision float8, mxfp8 or nvfp4."""

    float8_recipe: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] = Field(
        "tensorwise",
        description="torchao's recipe of float8: one scale per tensor (tensorwise, the fastest), one per row "
        "(rowwise), or one per row with the gradients of weights in bf16 (rowwise_with_gw_hp, the most accurate), "
        "which is not for plain ddp.",
    )
    minimum_features: Integer = Field(
        1024,
        gt=0,
        description="Linear layers with fewer inputs or outputs on a rank remain in bf16: their conversion takes "
        "longer than it saves.",
    )
    bf16_blocks: Integer = Field(
        0,
        ge=0,
        description="Number of final blocks that remain in bf16: nvfp4 may need about 15 % of the blocks (NVIDIA, "
        "arXiv 2509.25149).",
    )


def linear_features(model: DecoderConfig, tensor: int) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs on a rank of each linear layer of a block, by name. `tensor`: tensor parallel degree.

    `parallel_problems` reports sizes that it does not divide.
    """
    dim, inner = model.dim, model.intermediate_size // tensor
    queries, keys = model.heads * model.head_size // tensor, model.kv_heads * model.head_size // tensor
    inputs_divided = {"o_proj": (queries, dim), "down_proj": (inner, dim)}
    outputs = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": inner, "up_proj": inner}
    return {name: (dim, size) for name, size in outputs.items()} | inputs_divided


def converted_layers(model: DecoderConfig, settings: LowPrecisionConfig, tensor: int) -> dict[str, tuple[int, int]]:
    """Return those of `linear_features` that have the low precision: the others are too small."""
    features = linear_features(model, tensor)
    return {name: sizes for name, sizes in features.items() if min(sizes) >= settings.minimum_features}


def require_low_precision(
    precision: str,
    settings: LowPrecisionConfig,
    model: ModelConfig,
    parallel: ParallelConfig,
    micro_batch: int,
) -> None:
    """Raise the validation error of a model that cannot be trained in one of LOW_PRECISIONS. `micro_batch`: samples."""
    if not isinstance(model, DecoderConfig):
        raise validation_error("low_precision_unsupported", "is for the built-in decoder: set bf16", "precision")
    if model.experts is not None:
        reason = "is for linear layers, and the experts have most of the products: set bf16"
        raise validation_error("experts_unsupported", reason, "precision")
    recipe = settings.float8_recipe
    if (precision != "float8" or recipe == "rowwise_with_gw_hp") and not parallel.sharded:
        key = "precision" if precision != "float8" else "low_precision.float8_recipe"
        reason = (
            "needs FSDP's mixed precision, which gathers weights in bf16, and parallel.data is ddp: set fsdp or hsdp"
        )
        raise validation_error("low_precision_unsupported", reason, key)
    if precision != "float8" and parallel.tensor > 1:
        reason = f"needs parallel.tensor 1, and it is {parallel.tensor}"
        raise validation_error("low_precision_unsupported", reason, "precision")
    if not model.has_shape:
        return
    if settings.bf16_blocks >= model.layers:
        reason = f"leaves none of the {model.layers} layers of the model to convert: reduce it, or set precision bf16"
        raise validation_error("low_precision_without_effect", reason, "low_precision.bf16_blocks")
    layers = converted_layers(model, settings, parallel.tensor)
    if not layers:
        largest = max(min(sizes) for sizes in linear_features(model, parallel.tensor).values())
        reason = (
            f"converts no layer: none has low_precision.minimum_features {settings.minimum_features} inputs and "
            f"outputs on a rank, only up to {largest}: set bf16, or reduce minimum_features"
        )
        raise validation_error("low_precision_without_effect", reason, "precision")
    _require_multiples(precision, layers, model.sequence_length // parallel.context, micro_batch)


def _require_multiples(precision: str, layers: dict[str, tuple[int, int]], length: int, micro_batch: int) -> None:
    """Raise the validation error of sizes that the kernels do not support. `length`: tokens of a sequence on a rank."""
    multiple = _MULTIPLES[precision]
    unaligned = [
        f"{name} has {inputs} inputs and {outputs} outputs"
        for name, (inputs, outputs) in layers.items()
        if inputs % multiple or outputs % multiple
    ]
    # Products for the gradients of weights are sums over the tokens; the kernels of nvfp4 need it for each sequence.
    tokens, of = (length, "sequence") if precision == "nvfp4" else (length * micro_batch, "micro-batch")
    unaligned += [f"a {of} has {tokens} tokens"] if tokens % multiple else []
    if unaligned:
        reason = f"needs multiples of {multiple} on a rank: {', '.join(unaligned)}"
        raise validation_error("low_precision_unaligned_sizes", reason, "precision")
