"""Models in the format of Hugging Face, read by the built-in decoder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.conftest import ROOT
from tests.trainer.models.hub_server import serve_model
from tests.trainer.models.library_models import MODELS, save_model
from trainer.models import build
from trainer.models.decoder import Decoder
from trainer.models.pretrained import open_model_storage, resolve_decoder, transformers_config
from trainer.models.pretrained_weights import SafetensorsReader, load_weights
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig
from trainyard.errors import InputError


def read(location: str, **changes: Any) -> Decoder:
    """Return the decoder with the weights at a location."""
    model = resolve_decoder(DecoderConfig(path=location, weights=True, **{"sequence_length": 48, **changes}))
    module = build(TrainerConfig(model=model)).module.to_empty(device="cpu")
    assert isinstance(module, Decoder)
    module.table = Decoder(model, None).table  # to_empty has replaced it, too
    load_weights(module, open_model_storage(location))
    return module


def code_of(error: pytest.ExceptionInfo[InputError]) -> tuple[str, str]:
    (problem,) = error.value.problems
    return problem.code, problem.reason


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    expected = save_model(tmp_path, name, file_bytes="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = torch.randint(0, 256, (2, 48))
    with torch.no_grad():
        torch.testing.assert_close(read(str(tmp_path))(tokens), expected(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_written_config_is_the_same_model(name: str, tmp_path: Path) -> None:
    save_model(tmp_path, name)
    model = resolve_decoder(DecoderConfig(path=str(tmp_path), sequence_length=48))
    (tmp_path / "config.json").write_text(json.dumps(transformers_config(model, {})))
    assert resolve_decoder(DecoderConfig(path=str(tmp_path), sequence_length=48)).shape == model.shape


def test_weights_are_read_from_s3(s3: Any, tmp_path: Path) -> None:
    expected = save_model(tmp_path, "llama", dtype=torch.bfloat16)
    for file in tmp_path.iterdir():
        s3.upload_file(str(file), "runs", f"models/llama/{file.name}")
    module = read("s3://runs/models/llama")
    assert torch.equal(module.lm_head.weight, expected.lm_head.weight.float())


def test_large_tensors_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = save_model(tmp_path, "llama")
    sizes = []
    storage = open_model_storage(str(tmp_path))
    read_range = type(storage).read_range
    monkeypatch.setattr("trainer.models.pretrained_weights._MAX_READ_BYTES", 1000)

    def record(self: Any, key: str, start: int, stop: int) -> bytes:
        sizes.append(stop - start)
        return read_range(self, key, start, stop)

    monkeypatch.setattr(type(storage), "read_range", record)
    module = read(str(tmp_path))
    header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    assert max(size for size in sizes if size != header) <= 1000
    assert torch.equal(module.lm_head.weight, expected.lm_head.weight)


def test_missing_weight_is_named(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError) as error:
        read(str(tmp_path))
    assert code_of(error) == ("model_weights_mismatch", "has no weight model.layers.1.mlp.up_proj.weight")


def test_files_that_are_not_in_the_index_are_ignored(tmp_path: Path) -> None:
    expected = save_model(tmp_path, "llama", file_bytes="40KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    name, file = next(iter(index["weight_map"].items()))
    save_file({name: torch.zeros(2)}, tmp_path / "model-00099-of-00099.safetensors")
    (tmp_path / "consolidated.safetensors").write_bytes((tmp_path / file).read_bytes())
    assert torch.equal(read(str(tmp_path)).lm_head.weight, expected.lm_head.weight)


def test_model_in_one_file_needs_no_index(tmp_path: Path) -> None:
    expected = save_model(tmp_path, "llama")
    save_file({"model.norm.weight": torch.zeros(48)}, tmp_path / "consolidated.safetensors")
    assert torch.equal(read(str(tmp_path)).norm.weight, expected.model.norm.weight)


def test_weight_in_two_files_without_an_index_is_an_error(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", file_bytes="40KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    first = min(tmp_path.glob("*.safetensors"))
    (tmp_path / "other.safetensors").write_bytes(first.read_bytes())
    with pytest.raises(InputError) as error:
        read(str(tmp_path))
    assert code_of(error)[0] == "duplicate_weight"


def test_reading_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = save_model(tmp_path, "llama")
    storage = open_model_storage(str(tmp_path))
    read_range = type(storage).read_range
    failures = iter([OSError("SlowDown"), OSError("timeout")])

    def fail_twice(self: Any, key: str, start: int, stop: int) -> bytes:
        if (error := next(failures, None)) is not None:
            raise error
        return read_range(self, key, start, stop)

    monkeypatch.setattr(type(storage), "read_range", fail_twice)
    monkeypatch.setattr("trainer.checkpoints.failures.time.sleep", lambda seconds: None)
    assert torch.equal(read(str(tmp_path)).norm.weight, expected.model.norm.weight)


def test_fingerprint_depends_on_the_weights_only(tmp_path: Path) -> None:
    def fingerprint(folder: str, **options: Any) -> str:
        model = save_model(tmp_path / folder, "llama", **options)
        if folder == "trained":
            model.model.layers[1].self_attn.q_proj.weight.data += 0.01
            model.save_pretrained(tmp_path / folder)
        return SafetensorsReader(open_model_storage(str(tmp_path / folder))).fingerprint()

    assert fingerprint("one") == fingerprint("split", file_bytes="40KB")
    assert fingerprint("one") != fingerprint("trained")


@pytest.mark.parametrize(
    ("keys", "code", "text"),
    [
        ({"model_type": "gemma2"}, "model_type_unsupported", "gemma2"),
        ({"hidden_act": "gelu"}, "model_feature_unsupported", "hidden_act 'gelu'"),
        ({"attention_bias": True}, "model_feature_unsupported", "attention_bias True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "model_feature_unsupported", "rope_type 'yarn'"),
        ({"model_type": "mistral", "sliding_window": 32}, "model_feature_unsupported", "sliding_window 32"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5}},
            "model_feature_unsupported",
            "partial_rotary_factor",
        ),
        ({"max_position_embeddings": 32}, "sequence_too_long", "32 positions"),
        ({"num_key_value_heads": "two"}, "model_config_rejected", "transformers refuses"),
    ],
)
def test_other_models_are_refused(keys: dict[str, Any], code: str, text: str, tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    del content["rope_parameters"]
    file.write_text(json.dumps({**content, **keys}))
    with pytest.raises(InputError) as error:
        resolve_decoder(DecoderConfig(path=str(tmp_path), sequence_length=48))
    actual, reason = code_of(error)
    assert actual == code
    assert text in reason


def test_key_that_differs_from_the_model_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with pytest.raises(InputError) as error:
        resolve_decoder(DecoderConfig.model_validate({"path": str(tmp_path), "layers": 3, "sequence_length": 48}))
    assert code_of(error) == ("model_shape_mismatch", f"differs from config.json of {tmp_path}, which has 2")


RESOLVE = """
import sys
from trainer.models.pretrained import resolve_decoder
from trainyard.config.training.models import DecoderConfig
from trainyard.errors import InputError

try:
    model = resolve_decoder(DecoderConfig(path=sys.argv[1], weights=True, sequence_length=48))
    print(model.path, model.layers)
except InputError as error:
    print(error.problems[0].code, error)
"""


def resolve_from_hub(name: str, endpoint: str, folder: Path) -> str:
    """Return the output of a process that resolves a model of the hub at an endpoint."""
    variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", RESOLVE, name], env=os.environ | variables, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_model_of_the_hub_is_downloaded(tmp_path: Path) -> None:
    save_model(tmp_path / "tiny", "llama")
    with serve_model("org/tiny", tmp_path / "tiny") as endpoint:
        path, layers = resolve_from_hub("org/tiny", endpoint, tmp_path).split()
        missing = resolve_from_hub("org/other", endpoint, tmp_path)
    assert (Path(path) / "model.safetensors").read_bytes() == (tmp_path / "tiny/model.safetensors").read_bytes()
    assert layers == "2"
    assert missing.startswith("model_missing"), missing


def test_model_of_the_hub_is_an_error_without_network(tmp_path: Path) -> None:
    output = resolve_from_hub("org/tiny", "http://127.0.0.1:9", tmp_path)
    assert output.startswith(
        "hub_download_failed config.model.path = 'org/tiny': is no folder here, and cannot be downloaded from the "
        "Hugging Face hub"
    )
    assert "$MODEL_PATH" in output
