"""A shrunk model has the class of the full model; the full model is checked first."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.shrink_model import Request, shrink
from trainyard.config.training.models import HuggingFaceConfig
from trainyard.errors import InputError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "bos_token_id": 128000,
}


def model(config: dict[str, Any], **fields: Any) -> HuggingFaceConfig:
    return HuggingFaceConfig.model_validate({"kind": "hugging_face", "config": config, **fields})


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        (LLAMA, "LlamaForCausalLM"),
        ({"model_type": "gpt2"}, "GPT2LMHeadModel"),
        ({"model_type": "qwen3_moe"}, "Qwen3MoeForCausalLM"),
        ({"model_type": "gemma3_text"}, "Gemma3ForCausalLM"),  # a list with one entry for each layer
        ({"model_type": "falcon"}, "FalconForCausalLM"),  # its head size is a property
    ],
)
def test_shrunk_model_has_the_same_class(config: dict[str, Any], architecture: str) -> None:
    result = shrink(Request(model=model(config), vocabulary=512))
    assert result.architecture == architecture
    assert result.shrunk_parameters < 4e6 < result.parameters


def test_shrunk_model_has_more_experts_than_a_token() -> None:
    changes = shrink(Request(model=model({"model_type": "qwen3_moe"}), vocabulary=512)).changes
    assert (changes["num_local_experts"], changes["num_experts_per_tok"]) == (4, 2)


def test_grouped_query_attention_is_kept() -> None:
    changes = shrink(Request(model=model(LLAMA), vocabulary=512)).changes
    assert (changes["num_attention_heads"], changes["num_key_value_heads"]) == (4, 2)
    assert (changes["num_hidden_layers"], changes["hidden_size"], changes["bos_token_id"]) == (2, 64, 0)


@pytest.mark.parametrize(
    ("config", "fields", "reason"),
    [
        ({**LLAMA, "num_attention_heads": 30}, {}, "not a multiple of the number of attention heads"),
        (LLAMA, {"sequence_length": 16384}, "longer than the 8192 positions"),
        ({"model_type": "llama", "num_hidden_layer": 16}, {}, "which would ignore it"),
    ],
)
def test_full_model_that_its_class_refuses_is_an_error(
    config: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        shrink(Request(model=model(config, **fields)))


def test_folder_is_shrunk_with_the_class_of_its_config(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}))
    (source / "tokenizer.json").write_text("{}")
    (source / "model.safetensors").write_text("large")
    result = shrink(Request(model=None, folder=str(source), output=str(output)))
    assert result.architecture == "LlamaForSequenceClassification"
    written = json.loads((output / "config.json").read_text())
    assert (written["num_hidden_layers"], written["vocab_size"]) == (2, 128256)
    assert (output / "tokenizer.json").exists()
    assert (output / "model.safetensors").read_bytes() != b"large"


@pytest.mark.parametrize("content", [None, {}, {**LLAMA, "architectures": ["TheirModel"]}])
def test_folder_without_a_known_model_is_refused(tmp_path: Path, content: dict[str, Any] | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError):
        shrink(Request(model=None, folder=str(tmp_path)))
