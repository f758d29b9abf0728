"""`python -m trainer.export`: the weights of a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.trainer.checkpoints.states import create_state, open_checkpoints, save_all
from tests.trainer.models.library_models import save_model
from trainer.export import __main__ as command
from trainer.export.model_config import build_empty_model
from trainer.models.pretrained import resolve_decoder, transformers_name
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.models.dataset import Shard, TokenDataset

DECODER = {"dim": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate_size": 32, "sequence_length": 8}
EXPERTS = {
    **{"architecture": "qwen3_moe", "dim": 16, "layers": 1, "heads": 2, "kv_heads": 1, "sequence_length": 8},
    **{"experts": 4, "experts_per_token": 2, "expert_intermediate_size": 8},
}
GPT2 = {
    "kind": "hugging_face",
    "config": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 16},
    "sequence_length": 8,
}
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {
    "kind": "hugging_face",
    "task": "masked",
    "config": {"model_type": "bert", "vocab_size": 64, "max_position_embeddings": 16, **SIZES},
    "sequence_length": 8,
}
LLAMA = {
    "kind": "hugging_face",
    "config": {"model_type": "llama", "vocab_size": 64, "max_position_embeddings": 16, **SIZES},
    "sequence_length": 8,
}


def checkpoint(shape: dict[str, Any], folder: Path, group: dist.ProcessGroup) -> tuple[torch.nn.Module, str]:
    torch.manual_seed(0)  # the errors of int8 depend on the weights
    config = TypeAdapter[ModelConfig](ModelConfig).validate_python(shape)
    model = build_empty_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
    with open_checkpoints(folder, group) as checkpoints:
        (uri,) = save_all(checkpoints, create_state(model, 3, shape=config.shape))
    return model, uri


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["export", *arguments])
    return command.main()


def test_decoder_is_exported_with_int8_weights(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, uri = checkpoint(DECODER, tmp_path / "checkpoints", group)
    assert run(monkeypatch, uri, str(tmp_path / "target"), "--int8") == 0
    exported = load_file(tmp_path / "target/model.safetensors")
    assert dict.fromkeys(exported, True) == {
        transformers_name(name): torch.equal(value, exported[transformers_name(name)])
        for name, value in model.state_dict().items()
    }
    report = json.loads((tmp_path / "target/int8/report.json").read_text())
    assert report["bytes"] < report["full_bytes"]
    assert report["loss"] is None
    from transformers import AutoModelForCausalLM

    quantized = AutoModelForCausalLM.from_pretrained(tmp_path / "target/int8", local_files_only=True)
    tokens = torch.randint(0, 256, (1, 8))
    exact = model(tokens)
    assert (quantized(tokens).logits - exact).std() < 0.05 * exact.std()


@pytest.mark.parametrize("shape", [DECODER, EXPERTS])
def test_exported_decoder_loads_in_transformers(
    shape: dict[str, Any], tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, uri = checkpoint(shape, tmp_path / "checkpoints", group)
    tokenizer = tmp_path / "dataset"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text(Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str())
    assert run(monkeypatch, uri, str(tmp_path / "target"), "--dtype", "bfloat16", "--tokenizer", str(tokenizer)) == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "target", local_files_only=True)
    assert exported.dtype == torch.bfloat16
    tokens = torch.randint(0, 256, (1, 8))
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    torch.testing.assert_close(exported.float()(tokens).logits, model(tokens), atol=1e-4, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "target", local_files_only=True)("b")["input_ids"] == [1]


def test_int8_weights_of_experts_are_refused(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, uri = checkpoint(EXPERTS, tmp_path / "checkpoints", group)
    assert run(monkeypatch, uri, str(tmp_path / "target"), "--int8") == 2
    assert "the experts of this model have most of its weights" in capsys.readouterr().err


def test_special_tokens_are_those_of_the_dataset(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, uri = checkpoint(DECODER, tmp_path / "checkpoints", group)
    (tmp_path / "data").mkdir()
    shard = Shard(key="a.bin", count=9, bytes=9, sha256="0" * 64)
    dataset = TokenDataset(name="a", source="a", train=(shard,), validation=(shard,), kind="tokens", start=3, end=4)
    (tmp_path / "data/dataset.json").write_text(dataset.model_dump_json())
    for name, options in (("with", ["--tokenizer", str(tmp_path / "data")]), ("without", [])):
        assert run(monkeypatch, uri, str(tmp_path / name), *options) == 0
    known, unknown = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("with", "without"))
    assert (known["bos_token_id"], known["eos_token_id"]) == (3, 4)
    assert (unknown["bos_token_id"], unknown["eos_token_id"]) == (None, None)


def test_export_has_the_files_of_the_base(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "base", "qwen3", dtype=torch.bfloat16)
    shape = resolve_decoder(DecoderConfig(path=str(tmp_path / "base"), sequence_length=8)).shape
    _, uri = checkpoint(shape, tmp_path / "checkpoints", group)
    assert run(monkeypatch, uri, str(tmp_path / "target"), "--base", str(tmp_path / "base")) == 0
    config = json.loads((tmp_path / "target/config.json").read_text())
    assert (config["max_position_embeddings"], config["eos_token_id"], config["dtype"]) == (64, 2, "bfloat16")
    assert (tmp_path / "target/generation_config.json").exists()
    assert load_file(tmp_path / "target/model.safetensors")["lm_head.weight"].dtype == torch.bfloat16
    save_model(tmp_path / "other", "qwen3", num_hidden_layers=1)
    assert run(monkeypatch, uri, str(tmp_path / "target"), "--base", str(tmp_path / "other")) == 2
    assert "has layers 1, and the checkpoint 2" in capsys.readouterr().err


def test_exported_hugging_face_model_loads_in_transformers(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    model, uri = checkpoint(GPT2, tmp_path / "checkpoints", group)
    assert run(monkeypatch, uri, str(tmp_path / "target"), "--int8") == 0
    assert (tmp_path / "target/int8/report.json").exists()
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "target", local_files_only=True)
    tokens = torch.randint(0, 64, (1, 8))
    inner: Any = model.get_submodule("model")
    assert torch.allclose(exported.eval()(tokens).logits, inner.eval()(tokens).logits, atol=1e-5)


@pytest.mark.parametrize(("shape", "matrices"), [(LLAMA, 8), (BERT, 7)])
def test_exported_int8_weights_load_in_transformers(
    shape: dict[str, Any],
    matrices: int,
    tmp_path: Path,
    group: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BERT's output layer is also its embedding and is not quantized."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    model, uri = checkpoint(shape, tmp_path / "checkpoints", group)
    assert run(monkeypatch, uri, str(tmp_path / "target"), "--int8") == 0
    assert json.loads((tmp_path / "target/int8/report.json").read_text())["matrices"] == matrices
    auto_class = AutoModelForMaskedLM if shape is BERT else AutoModelForCausalLM
    exported, info = auto_class.from_pretrained(
        tmp_path / "target/int8", local_files_only=True, output_loading_info=True
    )
    assert not info["missing_keys"]
    tokens = torch.randint(0, 64, (1, 8))
    inner: Any = model.get_submodule("model")
    exact = inner.eval()(tokens).logits
    assert (exported.eval()(tokens).logits - exact).std() < 0.05 * exact.std()


@pytest.mark.parametrize(("shape", "second"), [(GPT2, "lm_head.weight"), (BERT, "cls.predictions.decoder.weight")])
def test_shared_weights_are_written_once(
    shape: dict[str, Any],
    second: str,
    tmp_path: Path,
    group: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, uri = checkpoint(shape, tmp_path / "checkpoints", group)
    assert any(name.endswith(second) for name in model.state_dict())
    assert run(monkeypatch, uri, str(tmp_path / "target")) == 0
    exported = load_file(tmp_path / "target/model.safetensors")
    assert second not in exported
    assert sum(value.numel() for value in exported.values()) == sum(value.numel() for value in model.parameters())


def test_missing_checkpoint_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert run(monkeypatch, str(tmp_path / "empty"), str(tmp_path / "target")) == 1
    assert ".metadata does not exist" in capsys.readouterr().err
    assert run(monkeypatch, str(tmp_path / "nowhere"), str(tmp_path / "target")) == 2
    assert "the folder does not exist" in capsys.readouterr().err
