"""Precisions with matrix products of FP8, MXFP8 or NVFP4 inputs: settings, and which linear layers have them."""

from typing import Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

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
        "which needs parallel.data fsdp or hsdp.",
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
        description="Number of blocks, the last of the model, that remain in bf16: nvfp4 may need some 15 % (NVIDIA, "
        "arXiv 2509.25149).",
    )


def linear_features(model: DecoderConfig, tensor: int) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs on a rank of each linear layer of a block, by name. `tensor`: tensor parallel degree.

    Raises nothing if `tensor` does not divide a size: `parallel_problems` reports it.
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


def low_precision_error(
    precision: str,
    settings: LowPrecisionConfig,
    model: ModelConfig,
    parallel: ParallelConfig,
    micro_batch: int,
) -> PydanticCustomError | None:
    """Return why a model cannot be trained in one of LOW_PRECISIONS; None if it can. `micro_batch`: in samples."""
    if not isinstance(model, DecoderConfig):
        return validation_error("low_precision_unsupported", f"precision {precision} is for the built-in decoder")
    if model.experts is not None:
        reason = f"precision {precision} is for linear layers, and the experts have most of the products: set bf16"
        return validation_error("experts_unsupported", reason)
    recipe = settings.float8_recipe
    needs_fsdp = precision != "float8" or recipe == "rowwise_with_gw_hp"
    if needs_fsdp and not parallel.sharded:
        of = f"low_precision.float8_recipe {recipe}" if precision == "float8" else f"precision {precision}"
        reason = f"{of} needs parallel.data fsdp or hsdp, whose mixed precision gathers weights in bf16, and it is ddp"
        return validation_error("low_precision_unsupported", reason)
    if precision != "float8" and parallel.tensor > 1:
        reason = f"precision {precision} needs parallel.tensor 1, and it is {parallel.tensor}"
        return validation_error("low_precision_unsupported", reason)
    if not model.has_shape:
        return None
    if settings.bf16_blocks >= model.layers:
        reason = f"low_precision.bf16_blocks {settings.bf16_blocks} leaves none of the {model.layers} layers to convert"
        return validation_error("low_precision_without_effect", reason)
    layers = converted_layers(model, settings, parallel.tensor)
    if not layers:
        largest = max(min(sizes) for sizes in linear_features(model, parallel.tensor).values())
        reason = (
            f"precision {precision} converts no layer: none has low_precision.minimum_features "
            f"{settings.minimum_features} inputs and outputs on a rank, only up to {largest}; set precision bf16"
        )
        return validation_error("low_precision_without_effect", reason)
    multiple = _MULTIPLES[precision]
    unaligned = [
        f"{name} {inputs} inputs and {outputs} outputs"
        for name, (inputs, outputs) in layers.items()
        if inputs % multiple or outputs % multiple
    ]
    # Products for the gradients of weights are sums over the tokens.
    tokens = model.sequence_length // parallel.context
    if precision != "nvfp4":  # whose kernels need it for each sequence
        tokens *= micro_batch
    unaligned += [f"a micro-batch {tokens} tokens"] if tokens % multiple else []
    if unaligned:
        reason = f"precision {precision} needs multiples of {multiple} on a rank, and there has " + ", ".join(unaligned)
        return validation_error("low_precision_unaligned_sizes", reason)
    return None
