"""The trainer's benchmarks, at small sizes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.trainer import ROOT, dataset, job, lines_of
from trainyard.models.dataset import DATASET, INDEX, TokenDataset


@pytest.mark.parametrize("vocabulary", [2**16, 2**17])
def test_a_token_is_as_wide_as_the_vocabulary_wants(tmp_path: Path, vocabulary: int) -> None:
    dataset(tmp_path, vocabulary)
    index = DATASET.validate_json((tmp_path / INDEX).read_bytes())
    assert isinstance(index, TokenDataset)
    tokens = np.fromfile(tmp_path / "train.bin", dtype=index.dtype)
    assert vocabulary // 2 < tokens.max() < vocabulary


@pytest.mark.parametrize("loop", ["plain", "nanogpt"])
def test_the_others_take_parts_of_the_model_too(tmp_path: Path, loop: str) -> None:
    dataset(tmp_path, 256)
    config = tmp_path / "config.json"
    config.write_text(job("1m", 2, 1, "bf16", micro=1, data="fsdp", length=16).model_dump_json())
    lines = lines_of(loop, tmp_path, config, 2)
    assert len(lines) == 3


def test_it_tells_our_rate_over_the_fastest_of_the_others() -> None:
    command = [sys.executable, "benchmarks/trainer.py", "--json", "--preset", "1m", "--rounds", "1", "--steps", "2"]
    command += ["--micro-batch", "2", "--sequence-length", "64", "--data", "fsdp"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rates = found["tokens_per_second"]
    assert set(rates) == {"ours", "plain", "nanogpt"}
    assert (found["micro_batch"], found["sequence_length"], found["data"]) == (2, 64, "fsdp")
    assert set(found["mfu"]) == set(rates)
    assert found["ratio"] == pytest.approx(rates["ours"] / max(rates["plain"], rates["nanogpt"]), abs=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU to measure")
def test_memory_is_measured_on_gpus_alone() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/memory.py"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "benchmarks/memory.py measures GPUs, and this machine has none.\n"
