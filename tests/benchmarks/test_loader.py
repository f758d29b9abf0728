"""The loader's benchmark, on a few samples: all contestants run, and its figures are there."""

import shutil
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from benchmarks import loader
from benchmarks.s3_server import PROGRAM
from benchmarks.trainer import ROOT


def test_a_missing_server_is_told_in_one_line() -> None:
    command = [sys.executable, "benchmarks/loader.py", "--server", "/none"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "go install github.com/versity/versitygw" in done.stderr


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM} on PATH")
def test_every_figure_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"SHARDS": 3, "SAMPLES": 40, "LENGTH": 256, "MICRO_BATCH": 4, "TRAINED": {"micro": 1, "length": 32}}
    for name, value in small.items():
        monkeypatch.setattr(loader, name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials of other tests
    found = loader.measure(Path(shutil.which(PROGRAM) or ""), rounds=1, seconds=0.01, steps=3)
    assert set(found["samples_per_second"]) == {
        "ours",
        "memory map",
        "memory map, by rows",
        "webdataset",
        "webdataset, 2 workers",
    }
    others = [rate for name, rate in found["samples_per_second"].items() if name != "ours"]
    assert found["ratio"] == pytest.approx(found["samples_per_second"]["ours"] / max(others), rel=0.01)
    assert 0 < found["data_wait"]["share"] < 1
    assert found["data_wait"]["steps"] == 3
    assert found["cold"]["samples_per_second"] > 0
