"""Format of an exported model: names, type and config.json; and the model itself for filling in exported weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.export.int8_export import int8_quantization_config
from trainer.export.safetensors_export import Rename
from trainer.models import build
from trainer.models.pretrained import read_config, transformers_config, transformers_name
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig, HuggingFaceConfig, ModelConfig

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """Names and type of the exported weights, and config.json."""

    config: dict[str, Any]
    rename: Rename  # returns the exported name of a weight
    dtype: torch.dtype

    def int8_config(self) -> dict[str, Any]:
        """Return `config.json` of the int8 weights, with which transformers loads them."""
        if "model_type" not in self.config:  # an image or custom model
            return self.config
        from transformers import TorchAoConfig

        return {**self.config, "quantization_config": TorchAoConfig(int8_quantization_config()).to_dict()}


def export_format(
    model: ModelConfig, special_tokens: Mapping[str, int | None] | None = None, dtype: str | None = None
) -> ExportFormat:
    """Return the format of a model's export.

    Language models have the format of transformers, with the config.json of `model.path` if there is one.
    `special_tokens`: keys of config.json, such as eos_token_id, for other models. `dtype`: float32, bfloat16 or
    float16; None: that of `model.path`, or float32.
    """
    if isinstance(model, DecoderConfig):
        source = None
        if model.path is None:
            config = transformers_config(model, dict(special_tokens or {}))
        else:
            config = read_config(model.path)
            source = config.get("dtype", config.get("torch_dtype"))
        name = dtype or (source if source in _TYPES else "float32")
        key = "dtype" if "dtype" in config else "torch_dtype"  # torch_dtype is known to all versions
        return ExportFormat(config={**config, key: name}, rename=transformers_name, dtype=_TYPES[name])
    name = dtype or "float32"
    if isinstance(model, HuggingFaceConfig):
        config = {**_library_config(model), "dtype": name}
        return ExportFormat(config=config, rename=_without_prefix, dtype=_TYPES[name])
    return ExportFormat(config=model.model_dump(mode="json"), rename=lambda name: name, dtype=_TYPES[name])


def _without_prefix(name: str) -> str:
    return name.removeprefix("model.")  # of LanguageModel


def _library_config(model: HuggingFaceConfig) -> dict[str, Any]:
    from trainer.models.hugging_face import load_transformers_config

    return {**load_transformers_config(model).to_dict(), "architectures": [type(_meta_model(model)).__name__]}


def shared_names(model: ModelConfig) -> list[list[str]]:
    """Return the exported names of each tensor that has several names, in the model's order."""
    if not isinstance(model, HuggingFaceConfig):
        return []
    names_by_tensor: dict[int, list[str]] = {}
    for name, tensor in _meta_model(model).state_dict(keep_vars=True).items():
        names_by_tensor.setdefault(id(tensor), []).append(name)
    return [names for names in names_by_tensor.values() if len(names) > 1]


def _meta_model(model: HuggingFaceConfig) -> nn.Module:
    """Return the model on the meta device, without memory for its weights."""
    from trainer.models.hugging_face import auto_model_class, load_transformers_config

    with torch.device("meta"):
        created: nn.Module = auto_model_class(model).from_config(load_transformers_config(model))
    return created


def build_empty_model(
    model: ModelConfig,
    loss_chunk_tokens: int | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return the model with uninitialized weights. `device`, `dtype`: those of the decoder's weights."""
    config = TrainerConfig.model_validate({"model": model.shape, "memory": {"loss_chunk_tokens": loss_chunk_tokens}})
    module: nn.Module = build(config).module
    # Not by to_empty, which would also replace the buffers.
    module._apply(lambda tensor: torch.empty_like(tensor, device=device, dtype=dtype) if tensor.is_meta else tensor)  # type: ignore[no-untyped-call]
    return module
