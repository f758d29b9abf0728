"""Check a Hugging Face model at full size and shrink it, for a rehearsal: `python -m trainer.shrink_model` (JSON).

The full model is created without memory (device meta), which finds what its class refuses, such as a hidden size that
the heads do not divide. The shrunk model has the same class and the same configuration with fewer layers, narrower
layers and, with `vocabulary`, fewer tokens. Reads a Request from stdin and prints a Result; exit status 2 for a model
that transformers refuses, with the problems as JSON.
"""

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from trainer.models.hugging_face import CONFIG_ERRORS, auto_model_class, load_transformers_config
from trainyard.base import StrictModel
from trainyard.config.training.models import HuggingFaceConfig
from trainyard.errors import InputError, Problem

HEAD_SIZE, LAYERS, MAX_HEADS, FEED_FORWARD_FACTOR, EXPERTS, EXPERTS_PER_TOKEN = 16, 2, 4, 3, 4, 2
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


class Request(StrictModel):
    """A model to shrink."""

    model: HuggingFaceConfig | None = Field(description="Model of the built-in trainer; none: that of `folder`.")
    folder: str | None = Field(None, description="Folder with config.json, in place of the path of `model`.")
    vocabulary: int | None = Field(None, gt=0, description="Largest vocabulary of the shrunk model; none: unchanged.")
    output: str | None = Field(None, description="Folder for the shrunk model, with new weights; none: not written.")


class Result(StrictModel):
    """The shrunk model."""

    architecture: str = Field(description="Class of the model.")
    parameters: int = Field(description="Parameters of the full model.")
    shrunk_parameters: int = Field(description="Parameters of the shrunk model.")
    changes: dict[str, Any] = Field(description="Key of the configuration -> value of the shrunk model.")


def shrink(request: Request) -> Result:
    """Check and shrink a model. Raises InputError if transformers refuses it at full size or shrunk."""
    model = request.model
    if model is not None and request.folder is not None:
        model = model.model_copy(update={"path": request.folder})
    config = _folder_config(request.folder) if model is None else load_transformers_config(model)
    create = _architecture(config, request.folder) if model is None else auto_model_class(model).from_config
    full = _create_on_meta(create, config, "")
    changes = shrunk_values(config, request.vocabulary)
    config = type(config).from_dict({**config.to_dict(), **changes})
    shrunk = _create_on_meta(create, config, "with few and narrow layers ")
    if request.output is not None:
        _write(create(config), Path(request.folder or "."), Path(request.output))
    return Result(
        architecture=type(full).__name__,
        parameters=sum(parameter.numel() for parameter in full.parameters()),
        shrunk_parameters=sum(parameter.numel() for parameter in shrunk.parameters()),
        changes=changes,
    )


def _folder_config(folder: str | None) -> Any:
    from transformers import AutoConfig

    if folder is None or not (Path(folder) / "config.json").is_file():
        raise _problem(folder, "has no config.json", "Name the folder of a model", "model_config_missing")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except CONFIG_ERRORS as error:
        raise _refused(folder, "", error) from None


def _architecture(config: Any, folder: str | None) -> Any:
    """Return the constructor of the class that config.json names."""
    import transformers

    names = config.architectures or ()
    architecture = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    if architecture is None:
        reason = f"config.json names no class of transformers (architectures: {', '.join(names) or 'none'})"
        raise _problem(folder, reason, "Add architectures, such as [LlamaForCausalLM]", "model_class_unknown")
    return architecture._from_config


def _create_on_meta(create: Any, config: Any, size: str) -> Any:
    try:
        with torch.device("meta"):
            return create(config)
    except CONFIG_ERRORS as error:
        raise _refused(config.name_or_path or config.model_type, size, error) from None


def _refused(value: Any, size: str, error: Exception) -> InputError:
    message = " ".join(str(error).split())[:300].rstrip(".")
    reason = f"transformers cannot create the model {size}from it: {message}"
    return _problem(value, reason, "Correct config.json", "model_config_rejected")


def _problem(value: Any, reason: str, fix: str, code: str) -> InputError:
    return InputError([Problem("config.model", value, reason, fix, code)])


def shrunk_values(config: Any, vocabulary: int | None) -> dict[str, Any]:
    """Return the changed keys of a transformers configuration, under the names of its class.

    The number of query heads for each key and value head is kept where it is 1, or that of one key and value head.
    """
    names = {name: config.attribute_map.get(name, name) for name in _STANDARD_NAMES}
    keys = config.to_dict()  # without properties that other keys decide
    values = {name: keys.get(attribute) for name, attribute in names.items()}
    heads = min(values["num_attention_heads"] or MAX_HEADS, MAX_HEADS)
    groups = values["num_key_value_heads"]
    small: dict[str, Any] = {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(values["num_attention_heads"], groups, heads),
        "hidden_size": heads * HEAD_SIZE,
        "head_dim": HEAD_SIZE,
        **dict.fromkeys(_FEED_FORWARD_NAMES, FEED_FORWARD_FACTOR * heads * HEAD_SIZE),
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "vocab_size": vocabulary,
    }
    changes = {
        names[name]: min(value, values[name])
        for name, value in small.items()
        if isinstance(values[name], int) and not isinstance(values[name], bool) and isinstance(value, int)
    }
    changes = {name: value for name, value in changes.items() if value != keys[name]}
    return changes | _dependent_values(config, values["num_hidden_layers"], changes.get("vocab_size"))


def _key_value_heads(heads: int | None, groups: int | None, small_heads: int) -> int | None:
    if heads is None or groups is None:
        return None
    return small_heads if groups == heads else 1 if groups == 1 else max(1, small_heads // 2)


def _dependent_values(config: Any, layers: int | None, vocabulary: int | None) -> dict[str, Any]:
    """Return lists with one entry for each layer, cut to LAYERS, and special tokens below the vocabulary."""
    changes: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, list) and layers is not None and len(value) == layers > LAYERS:
            changes[name] = value[:LAYERS]
        elif vocabulary is not None and name.endswith("_token_id") and isinstance(value, int) and value >= vocabulary:
            changes[name] = 0
    return changes


_FEED_FORWARD_NAMES = ("intermediate_size", "moe_intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_STANDARD_NAMES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    *_FEED_FORWARD_NAMES,
    "num_local_experts",
    "num_experts_per_tok",
    "vocab_size",
)


def _write(model: Any, source: Path, target: Path) -> None:
    """Write the model, and the other files of the source folder, such as its tokenizer."""
    model.save_pretrained(target)
    for path in source.iterdir():
        written = (target / path.name).exists() or path.name.endswith(".index.json")
        if path.is_file() and path.suffix not in _WEIGHTS and not written:
            shutil.copyfile(path, target / path.name)


def main() -> int:
    """Run the program. Returns 0, or 2 if transformers refuses the model."""
    try:
        print(shrink(Request.model_validate_json(sys.stdin.read())).model_dump_json())
    except InputError as error:
        print(json.dumps([asdict(problem) for problem in error.problems]))
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
