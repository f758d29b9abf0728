"""Benchmarks of the trainer with a small model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import memory
from benchmarks.trainer import ROOT, job_config, run_job, write_dataset
from trainyard.models.dataset import DATASET, INDEX, TokenDataset

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("vocabulary", [2**16, 2**17])
def test_token_dtype_follows_the_vocabulary(tmp_path: Path, vocabulary: int) -> None:
    write_dataset(tmp_path, vocabulary)
    index = DATASET.validate_json((tmp_path / INDEX).read_bytes())
    assert isinstance(index, TokenDataset)
    tokens = np.fromfile(tmp_path / "train.bin", dtype=index.dtype)
    assert vocabulary // 2 < tokens.max() < vocabulary


@pytest.mark.parametrize("loop", ["plain", "nanogpt"])
def test_baseline_loops_support_fsdp(tmp_path: Path, loop: str) -> None:
    write_dataset(tmp_path, 256)
    config = tmp_path / "config.json"
    config.write_text(job_config("1m", 2, 1, "bf16", micro=1, data="fsdp", length=16).model_dump_json())
    lines = run_job(loop, tmp_path, config, 2)
    assert len(lines) == 3


def test_ratio_is_to_the_fastest_baseline_loop() -> None:
    command = [sys.executable, "benchmarks/trainer.py", "--json", "--preset", "1m", "--rounds", "1", "--steps", "2"]
    command += ["--micro-batch", "2", "--sequence-length", "64", "--data", "fsdp"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])
    rates = results["tokens_per_second"]
    assert set(rates) == {"trainyard", "plain", "nanogpt"}
    assert (results["micro_batch"], results["sequence_length"], results["data"]) == (2, 64, "fsdp")
    assert set(results["mfu"]) == set(rates)
    assert results["ratio"] == pytest.approx(rates["trainyard"] / max(rates["plain"], rates["nanogpt"]), abs=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU to measure")
@pytest.mark.parametrize("variant", memory.VARIANTS)
def test_variants_of_the_memory_benchmark_are_valid(variant: str) -> None:
    base = job_config("124m", 8, 1, "fp32")
    config = memory.variant_config(variant, base)
    assert config.precision == memory.VARIANTS[variant]["precision"]
    assert config.problems(8, 8) == []


def test_memory_benchmark_requires_a_gpu() -> None:
    process = subprocess.run(
        [sys.executable, "benchmarks/memory.py"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 2
    assert process.stderr == "benchmarks/memory.py needs a GPU, and this machine has none.\n"
