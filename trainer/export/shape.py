"""What of a model others need to know beside its weights."""

from typing import Any

import torch
from torch import nn

from contract.training import TrainerConfig
from contract.training.models import HuggingFaceConfig, ModelConfig
from trainer.models import build


def prefix_of(shape: ModelConfig) -> str:
    """What the names of a model's weights begin with here, and nowhere else."""
    return "model." if isinstance(shape, HuggingFaceConfig) else ""


def config_of(shape: ModelConfig) -> dict[str, Any]:
    """`config.json`: the library's own for its models, and ours for ours."""
    if not isinstance(shape, HuggingFaceConfig):
        return shape.model_dump(mode="json")
    from trainer.models.hugging_face import library_config, maker_of

    found: Any = library_config(shape)
    with torch.device("meta"):
        name = type(maker_of(shape).from_config(found)).__name__
    return {**found.to_dict(), "architectures": [name]}


def empty(shape: ModelConfig, loss_chunk: int | None = None) -> nn.Module:
    """The model in the host's memory, its weights to be filled."""
    config = TrainerConfig.model_validate({"model": shape.model_dump(), "memory": {"loss_chunk": loss_chunk}})
    module: nn.Module = build(config).module
    # Not by to_empty, which would empty the buffers too.
    module._apply(lambda each: torch.empty_like(each, device="cpu") if each.is_meta else each)  # type: ignore[no-untyped-call]
    return module
