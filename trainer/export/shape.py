"""What of a model others need to know beside its weights."""

from typing import Any

import torch
from torch import nn

from trainer.export.int8 import form
from trainer.models import build
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import HuggingFaceConfig, ModelConfig


def prefix_of(shape: ModelConfig) -> str:
    """What the names of a model's weights begin with here, and nowhere else."""
    return "model." if isinstance(shape, HuggingFaceConfig) else ""


def config_of(shape: ModelConfig) -> dict[str, Any]:
    """`config.json`: the library's own for its models, and ours for ours."""
    if not isinstance(shape, HuggingFaceConfig):
        return shape.model_dump(mode="json")
    from trainer.models.hugging_face import library_config

    return {**library_config(shape).to_dict(), "architectures": [type(_outline(shape)).__name__]}


def int8_config_of(shape: ModelConfig, own: dict[str, Any]) -> dict[str, Any]:
    """`own`, as `config_of` gives it, for the weights in 8 bits: transformers reads them by it as it reads others."""
    if not isinstance(shape, HuggingFaceConfig):
        return own
    from transformers import TorchAoConfig

    return {**own, "quantization_config": TorchAoConfig(form()).to_dict()}


def shared_names(shape: ModelConfig) -> list[list[str]]:
    """Names of one tensor, as an export has them, the model's first one first; of each that has more than one."""
    found: dict[int, list[str]] = {}
    for name, tensor in _outline(shape).state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def _outline(shape: ModelConfig) -> nn.Module:
    """The model without its numbers."""
    if not isinstance(shape, HuggingFaceConfig):
        return build(TrainerConfig(model=shape)).module
    from trainer.models.hugging_face import library_config, maker_of

    with torch.device("meta"):
        made: nn.Module = maker_of(shape).from_config(library_config(shape))
    return made


def empty(shape: ModelConfig, loss_chunk: int | None = None) -> nn.Module:
    """The model in the host's memory, its weights to be filled."""
    config = TrainerConfig.model_validate({"model": shape.model_dump(), "memory": {"loss_chunk": loss_chunk}})
    module: nn.Module = build(config).module
    # Not by to_empty, which would empty the buffers too.
    module._apply(lambda each: torch.empty_like(each, device="cpu") if each.is_meta else each)  # type: ignore[no-untyped-call]
    return module
