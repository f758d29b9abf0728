"""Models in the format of Hugging Face: where they are, and their config.json as settings of the built-in decoder."""

import json
import os
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.storage import Storage, open_storage
from trainyard.config.training.models import MODEL_PATH, DecoderConfig, HuggingFaceConfig, LanguageModelConfig
from trainyard.errors import InputError, Problem

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"  # the file of each tensor
PATH_KEY = "config.model.path"
# By architecture: its name in the class of transformers.
_NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}
# Settings of DecoderConfig -> their names in config.json.
_BALANCE = "router_aux_loss_coef"  # the same key in config.json and here
_EXPERT_KEYS = {
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_intermediate_size": "moe_intermediate_size",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
_UPLOAD = "Upload the model (trainyard data put FOLDER NAME), set job.model to dataset:NAME and the path to $MODEL_PATH"


def locate(model: LanguageModelConfig) -> str:
    """Return the folder or the s3:// URI of the model at `model.path`; a model of the hub is downloaded first.

    Raises InputError if MODEL_PATH is not set, or if the download fails.
    """
    assert model.path is not None
    path = model.path
    if path == MODEL_PATH and not (path := os.environ.get(MODEL_PATH.lstrip("$"), "")):
        fix = "Set MODEL_PATH to the folder of the model"
        raise _error(model.path, "MODEL_PATH is not set", fix, "variable_missing")
    if _HUB_ID.fullmatch(path) and not Path(path).exists():
        return _download(path, weights=model.weights)
    if "://" in path and isinstance(model, HuggingFaceConfig):
        reason = "is an S3 URI, and kind: hugging_face reads models from a folder or the hub only"
        fix = "Set job.model to it and the path to $MODEL_PATH, or set kind: decoder"
        raise _error(path, reason, fix, "model_not_in_a_folder")
    return path


def _download(name: str, *, weights: bool) -> str:
    """Download a model of the Hugging Face hub to the cache of this node, once for all processes."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    patterns = [*_FILES, *(["model*.safetensors"] if weights else [])]  # without those of other formats
    try:
        return str(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError:
        reason, fix = "is a gated model", "Accept its license on the hub, and set HF_TOKEN in job.secrets"
        raise _error(name, reason, fix, "model_gated") from None
    except RepositoryNotFoundError:
        reason = "is neither a folder nor a public model of the Hugging Face hub"
        raise _error(name, reason, "Correct it, or set HF_TOKEN in job.secrets", "model_missing") from None
    except (HfHubHTTPError, OSError) as error:
        # The last line of huggingface_hub's messages is advice for other programs.
        text = str(error).strip().removeprefix("Got: ")
        cause = text.splitlines()[0][:200] if text else type(error).__name__
        reason = f"is no folder here, and cannot be downloaded from the Hugging Face hub: {cause}"
        raise _error(name, reason, _UPLOAD, "hub_download_failed") from None


def read_config(location: str) -> dict[str, Any]:
    """Return the content of config.json. Raises InputError if it does not exist or is no JSON object."""
    content = open_model_storage(location).read(CONFIG)
    if content is None:
        raise _error(location, f"has no {CONFIG}", "Set it to the folder of a model", "model_config_missing")
    try:
        config = json.loads(content)
    except ValueError as error:
        raise _error(
            location, f"its {CONFIG} is no JSON: {error}", "Repair the file", "model_config_rejected"
        ) from None
    if not isinstance(config, dict):
        raise _error(location, f"its {CONFIG} is no JSON object", "Repair the file", "model_config_rejected")
    return config


def decoder_settings(config: dict[str, Any], location: str, length: int) -> dict[str, Any]:
    """Return the settings of DecoderConfig, except the sequence length, for the model of a config.json.

    `length`: tokens of the sequences to train on. Raises InputError if the decoder does not compute this model.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    architecture = config.get("model_type")
    if architecture not in _NAMES:
        computed = " and ".join(", ".join(_NAMES).rsplit(", ", 1))
        fact = f"its {CONFIG} has no model_type" if architecture is None else f"is a model of type {architecture}"
        reason = f"{fact}, and the built-in decoder computes {computed}"
        raise _error(location, reason, "Set kind: hugging_face", "model_type_unsupported")
    try:
        parsed = CONFIG_MAPPING[architecture].from_dict(config)
    except Exception as error:  # transformers has several types
        reason = f"transformers refuses its {CONFIG}: {' '.join(str(error).split())[:300]}"
        raise _error(location, reason, "Correct the file", "model_config_rejected") from None
    rope = dict(parsed.rope_parameters)
    theta, kind = rope.pop("rope_theta"), rope.get("rope_type", "default")
    unsupported = {
        "hidden_act": parsed.hidden_act != "silu",
        "attention_bias": getattr(parsed, "attention_bias", False),
        "mlp_bias": getattr(parsed, "mlp_bias", False),
        "rope_type": kind not in ("default", "linear", "llama3"),
        "sliding_window": (getattr(parsed, "sliding_window", None) or length) < length,
        "decoder_sparse_step": getattr(parsed, "decoder_sparse_step", 1) != 1,  # layers without experts
        "mlp_only_layers": bool(getattr(parsed, "mlp_only_layers", [])),
        "norm_topk_prob": not getattr(parsed, "norm_topk_prob", True),  # transformers' default is false
    }
    for key, is_unsupported in unsupported.items():
        if is_unsupported:
            value = kind if key == "rope_type" else getattr(parsed, key)
            reason = f"its {CONFIG} has {key} {value!r}, which the built-in decoder does not compute"
            shorter = " or a shorter sequence_length" if key == "sliding_window" else ""
            raise _error(location, reason, f"Set kind: hugging_face{shorter}", "model_feature_unsupported")
    if length > parsed.max_position_embeddings:
        reason = f"is longer than the {parsed.max_position_embeddings} positions of {location}"
        problem = Problem(
            "config.model.sequence_length",
            length,
            reason,
            f"Set it to at most {parsed.max_position_embeddings}",
            "sequence_too_long",
        )
        raise InputError([problem])
    return {
        "architecture": architecture,
        "dim": parsed.hidden_size,
        "layers": parsed.num_hidden_layers,
        "heads": parsed.num_attention_heads,
        "kv_heads": parsed.num_key_value_heads,
        "head_dim": getattr(parsed, "head_dim", None) or parsed.hidden_size // parsed.num_attention_heads,
        "intermediate_size": parsed.intermediate_size,
        "vocabulary": parsed.vocab_size,
        "rope_theta": float(theta),
        "rope_scaling": None if kind == "default" else rope,
        "norm_eps": parsed.rms_norm_eps,
        "tie_embeddings": parsed.tie_word_embeddings,
        **({key: getattr(parsed, name) for key, name in _EXPERT_KEYS.items()} if architecture == "qwen3_moe" else {}),
        **({_BALANCE: parsed.router_aux_loss_coef} if architecture == "qwen3_moe" else {}),
    }


def resolve_decoder(model: DecoderConfig) -> DecoderConfig:
    """Return the settings with the shape of the model at `path`, and that path as a location.

    Raises InputError if the model cannot be read, or if a key that is set has another value there.
    """
    location = locate(model)
    open_model_storage(location).require()
    shape = decoder_settings(read_config(location), location, model.sequence_length)
    try:
        resolved = DecoderConfig.model_validate({**shape, "path": location, "sequence_length": model.sequence_length})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the sizes of the heads"
        reason = f"its {CONFIG} has a value that the built-in decoder does not compute: {where}: {first['msg']}"
        raise _error(location, reason, "Set kind: hugging_face", "model_feature_unsupported") from None
    problems = [
        Problem(
            f"config.model.{key}",
            value,
            f"differs from {CONFIG} of {location}, which has {getattr(resolved, key)!r}",
            "Remove it, or set another path",
            "model_shape_mismatch",
        )
        for key in sorted(model.model_fields_set & shape.keys() - {_BALANCE})
        if (value := getattr(model, key)) != getattr(resolved, key) and (key != "head_dim" or value is not None)
    ]
    if problems:
        raise InputError(problems)
    # Not of the shape: a job may have another coefficient than the pretraining of the model.
    kept = {_BALANCE: model.router_aux_loss_coef} if _BALANCE in model.model_fields_set else {}
    return resolved.model_copy(update={"weights": model.weights, **kept})


def transformers_config(model: DecoderConfig, special_tokens: dict[str, int | None]) -> dict[str, Any]:
    """Return config.json with which transformers and vLLM load the decoder's weights.

    `special_tokens`: keys such as eos_token_id; unknown tokens are null, because the defaults of transformers are those
    of another vocabulary. The keys of the result are those of published models, which all versions read.
    """
    scaling = None
    if model.rope_scaling is not None:
        is_linear = model.rope_scaling.rope_type == "linear"
        scaling = model.rope_scaling.model_dump(include={"rope_type", "factor"} if is_linear else None)
    config = {
        "architectures": [f"{_NAMES[model.architecture]}ForCausalLM"],
        "model_type": model.architecture,
        "hidden_size": model.dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.sequence_length,
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tie_embeddings,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": None,
        **special_tokens,
    }
    if model.architecture == "mistral":
        config["sliding_window"] = None
    if model.architecture == "qwen3_moe":
        config |= {name: getattr(model, key) for key, name in _EXPERT_KEYS.items()}
        config |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
        config[_BALANCE] = model.router_aux_loss_coef
    return config


def transformers_name(name: str) -> str:
    """Return the name that a weight of the decoder has in transformers.

    The name of a weight of all experts has `*` in place of an expert's number: files have a tensor for each expert.
    """
    prefix, separator, matrix = name.partition(".mlp.experts.")
    if separator:
        return f"model.{prefix}.mlp.experts.*.{matrix}.weight"
    return name if name.startswith("lm_head.") else f"model.{name}"


def numbered_names(name: str, count: int) -> list[str]:
    """Return the names of the tensors in files of a weight of `count` experts, or the name of any other weight."""
    return [name.replace("*", str(number)) for number in range(count)] if "*" in name else [name]


def open_model_storage(location: str) -> Storage:
    """Return the storage of a model's files."""
    return open_storage(location, PATH_KEY)


def _error(value: Any, reason: str, fix: str, code: str) -> InputError:
    return InputError([Problem(PATH_KEY, value, reason, fix, code)])
