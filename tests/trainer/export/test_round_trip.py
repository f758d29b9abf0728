"""Models of transformers are read, and exported with the same weights, in each parallel layout."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import ROOT, TINY
from tests.trainer.models.library_models import save_model
from trainer.export import __main__ as export_command

pytestmark = pytest.mark.slow

LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"data": "fsdp"},
    "tensor-and-fsdp": {"tensor": 2, "data": "fsdp"},
    "pipeline-and-tensor": {"pipeline": 2, "tensor": 2},
    "interleaved-and-fsdp": {"pipeline": 2, "schedule": "interleaved_1f1b", "data": "fsdp"},
}
NAMES = ("llama", "qwen3")
EXPERT_LAYOUTS = {"expert": {"data": "fsdp", "expert": 4}, "expert-and-fsdp": {"data": "fsdp", "expert": 2}}
CASES = [(name, layout) for name in NAMES for layout in LAYOUTS]
CASES += [("qwen3-moe", layout) for layout in ("ddp", "fsdp", *EXPERT_LAYOUTS)]


def config(model: Path, parallel: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of one step that changes no weight."""
    return {
        **TINY,
        "model": {"path": str(model), "weights": True, "sequence_length": 32},
        "parallel": parallel,
        "optimizer": {"learning_rate": 1e-60, "min_learning_rate": 0.0},
        "steps": 1,
        "batch_size": 16,
        "checkpoint": {"export": ["safetensors"]},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, dataset: Path, cache: Path) -> Path:
    """Runs of all layouts and models."""
    folder = tmp_path_factory.mktemp("round-trip")
    for name in dict(CASES):
        save_model(folder / name, name, dtype=torch.bfloat16, num_hidden_layers=4)  # interleaved: 4 stages
    runs = {
        str(folder / f"{name}-{layout}"): config(folder / name, (LAYOUTS | EXPERT_LAYOUTS)[layout])
        for name, layout in CASES
    }
    lora = {"lora": {"targets": ["q_proj", "o_proj"]}, "precision": "bf16"}
    runs[str(folder / "lora")] = config(folder / "qwen3-moe", EXPERT_LAYOUTS["expert-and-fsdp"]) | lora
    (folder / "runs.json").write_text(json.dumps(runs))
    environment = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "DATA_URI": str(dataset)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    process = subprocess.run(
        [*torchrun, "-m", "tests.trainer.layouts", str(folder / "runs.json")],
        env=os.environ | environment | {"TRAINYARD_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return folder


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_exported_weights_are_bit_equal(folder: Path, name: str, layout: str) -> None:
    export = folder / f"{name}-{layout}/results/export"
    actual = {key: tensor for file in export.glob("*.safetensors") for key, tensor in load_file(file).items()}
    expected = load_file(folder / name / "model.safetensors")
    assert actual.keys() == expected.keys()
    for key, tensor in expected.items():
        assert actual[key].dtype == torch.bfloat16
        assert torch.equal(actual[key], tensor), key


def test_merged_weights_of_experts_are_those_of_the_base(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the run and later: LoRA adapts the attention, here by zero."""
    base = folder / "qwen3-moe"
    uri = f"{folder}/lora/checkpoints/step-00000001"
    monkeypatch.setattr("sys.argv", ["export", uri, str(tmp_path), "--base", str(base)])
    assert export_command.main() == 0
    expected = load_file(base / "model.safetensors")
    for export in (folder / "lora/results/export", tmp_path):
        merged = load_file(export / "model.safetensors")
        assert {key: torch.equal(tensor, expected[key]) for key, tensor in merged.items()} == dict.fromkeys(
            expected, True
        )


@pytest.mark.parametrize("name", dict(CASES))
def test_loss_is_the_same_in_each_layout(folder: Path, name: str) -> None:
    losses = [
        json.loads((folder / f"{name}-{layout}/results/results.json").read_text())["validation_loss"]
        for case, layout in CASES
        if case == name
    ]
    assert losses == pytest.approx([losses[0]] * len(losses), abs=1e-5)


@pytest.mark.parametrize("name", dict(CASES))
def test_transformers_loads_the_export(folder: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    export = folder / f"{name}-fsdp/results/export"
    model, expected = (AutoModelForCausalLM.from_pretrained(each) for each in (export, folder / name))
    tokens = torch.randint(0, 256, (1, 16))
    assert torch.equal(model(tokens).logits, expected(tokens).logits)
    assert model.dtype == torch.bfloat16
    assert GenerationConfig.from_pretrained(export).eos_token_id == [2, 5]
