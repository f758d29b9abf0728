"""Configuration of an exported model, and the model itself for filling in exported weights."""

from typing import Any

import torch
from torch import nn

from trainer.export.int8_export import int8_quantization_config
from trainer.models import build
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import HuggingFaceConfig, ModelConfig


def name_prefix(shape: ModelConfig) -> str:
    """Return the prefix that the trainer's names of weights have and exported names do not."""
    return "model." if isinstance(shape, HuggingFaceConfig) else ""


def build_export_config(shape: ModelConfig) -> dict[str, Any]:
    """Return `config.json`: that of transformers for its models, and the trainer's settings for others."""
    if not isinstance(shape, HuggingFaceConfig):
        return shape.model_dump(mode="json")
    from trainer.models.hugging_face import load_transformers_config

    return {**load_transformers_config(shape).to_dict(), "architectures": [type(_meta_model(shape)).__name__]}


def build_int8_config(shape: ModelConfig, config: dict[str, Any]) -> dict[str, Any]:
    """Return `config.json` of the int8 weights, with which transformers loads them.

    `config`: the result of `build_export_config`.
    """
    if not isinstance(shape, HuggingFaceConfig):
        return config
    from transformers import TorchAoConfig

    return {**config, "quantization_config": TorchAoConfig(int8_quantization_config()).to_dict()}


def shared_names(shape: ModelConfig) -> list[list[str]]:
    """Return the exported names of each tensor that has several names, in the model's order."""
    names_by_tensor: dict[int, list[str]] = {}
    for name, tensor in _meta_model(shape).state_dict(keep_vars=True).items():
        names_by_tensor.setdefault(id(tensor), []).append(name)
    return [names for names in names_by_tensor.values() if len(names) > 1]


def _meta_model(shape: ModelConfig) -> nn.Module:
    """Return the model on the meta device, without memory for its weights."""
    if not isinstance(shape, HuggingFaceConfig):
        return build(TrainerConfig(model=shape)).module
    from trainer.models.hugging_face import auto_model_class, load_transformers_config

    with torch.device("meta"):
        model: nn.Module = auto_model_class(shape).from_config(load_transformers_config(shape))
    return model


def build_empty_model(shape: ModelConfig, loss_chunk_tokens: int | None = None) -> nn.Module:
    """Return the model in host memory with uninitialized weights."""
    config = TrainerConfig.model_validate(
        {"model": shape.model_dump(), "memory": {"loss_chunk_tokens": loss_chunk_tokens}}
    )
    module: nn.Module = build(config).module
    # Not by to_empty, which would also replace the buffers.
    module._apply(lambda tensor: torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor)  # type: ignore[no-untyped-call]
    return module
