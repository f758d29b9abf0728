"""Each kind of model learns from a dataset of `python -m trainer.prepare`."""

import email
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import ROOT, TINY, tiny
from trainer.checkpoints.reader import read_state_dict
from trainer.loop import train
from trainer.settings import Environment

pytestmark = pytest.mark.slow

Prepared = Callable[..., Path]
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Run `python -m trainer.prepare` with arguments; returns the folder of the dataset."""

    def prepare(*arguments: str) -> Path:
        folder = tmp_path_factory.mktemp("prepared")
        folders = ["--target", str(folder / "data"), "--work", str(folder / "work"), "--workers", "1"]
        subprocess.run(
            [sys.executable, "-m", "trainer.prepare", *arguments, *folders],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=120,
        )
        return folder / "data"

    return prepare


def text(prepared: Prepared, tokenizer: str) -> Path:
    source = str(Path(email.__file__).parent)
    files = ["--pattern", "*.py", "--format", "text", "--held-out", "0.1"]
    return prepared("tokens", source, *files, "--name", "email", "--tokenizer", tokenizer)


def assert_learns(environment: Environment, dataset: Path, *, steps: int = 40, **changes: Any) -> None:
    """Train and check that the validation loss decreases by a tenth."""
    changed = replace(environment, data_uri=str(dataset))
    train(tiny(steps=steps, evaluation={"interval_steps": steps}, **changes), changed)
    lines = [json.loads(line) for line in (environment.metrics_dir / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["validation_loss"] < 0.9 * lines[0]["loss"]


def test_hugging_face_causal_model_learns(alone: Environment, prepared: Prepared) -> None:
    config = {"model_type": "llama", "vocab_size": 512, **SMALL}
    model = {"kind": "hugging_face", "config": config, "sequence_length": 32}
    assert_learns(alone, text(prepared, "train:512"), model=model)


def test_hugging_face_masked_model_learns(alone: Environment, prepared: Prepared) -> None:
    config = {"model_type": "bert", "vocab_size": 512, **SMALL}
    model = {"kind": "hugging_face", "task": "masked", "config": config, "sequence_length": 32}
    assert_learns(alone, text(prepared, "train:512:wordpiece"), steps=150, model=model)


def test_image_classifier_learns(alone: Environment, prepared: Prepared) -> None:
    model = {"kind": "images", "architecture": "resnet18", "classes": 10, "image_size": 32}
    optimizer = {"learning_rate": 1e-3, "min_learning_rate": 1e-4}
    dataset = prepared("sample", "digits")
    batch = {"batch_size": 32, "micro_batch_size": 32, "data": {"workers": 0}}
    assert_learns(alone, dataset, steps=80, model=model, optimizer=optimizer, **batch)
    line = json.loads((alone.metrics_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["tokens_per_second"] is None


def test_image_classifier_resumes_exactly(alone: Environment, prepared: Prepared) -> None:
    """Also with running statistics: the last two of four steps are repeated from a checkpoint."""
    model = {"kind": "images", "architecture": "resnet18", "classes": 10, "image_size": 32}
    changes = {"steps": 4, "checkpoint": {"interval_steps": 2}, "data": {"workers": 0}, "model": model}
    environment = replace(alone, data_uri=str(prepared("sample", "digits")))
    train(tiny(**changes), environment)
    expected = read_state_dict(f"{alone.checkpoint_uri}/step-00000004/")
    shutil.rmtree(f"{alone.checkpoint_uri}/step-00000004/")
    train(tiny(**changes), environment)
    for name, value in read_state_dict(f"{alone.checkpoint_uri}/step-00000004/").items():
        assert torch.equal(value, expected[name]) if isinstance(value, torch.Tensor) else value == expected[name], name


def test_image_model_with_fsdp_in_bf16_has_the_losses_of_ddp(prepared: Prepared, tmp_path: Path) -> None:
    """Batch normalization remains in fp32 while other weights are cast."""
    model = {"kind": "images", "architecture": "resnet18", "classes": 10, "image_size": 32}
    changes = {"model": model, "precision": "bf16", "steps": 3, "batch_size": 16, "data": {"workers": 0}}
    runs = {kind: TINY | changes | {"micro_batch_size": 8, "parallel": {"data": kind}} for kind in ("ddp", "fsdp")}
    (tmp_path / "runs.json").write_text(json.dumps({str(tmp_path / kind): run for kind, run in runs.items()}))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "DATA_URI": str(prepared("sample", "digits"))}
    process = subprocess.run(
        [*torchrun, "-m", "tests.trainer.layouts", str(tmp_path / "runs.json")],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / kind / "metrics/metrics.jsonl").read_text().splitlines()]
        for kind in runs
    ]
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], abs=0.03)
