"""Benchmark of data loaders with few samples."""

import shutil
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from benchmarks import loader
from benchmarks.s3_server import PROGRAM
from benchmarks.trainer import ROOT


def test_missing_server_is_reported_in_one_line() -> None:
    command = [sys.executable, "benchmarks/loader.py", "--server", "/none"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert "go install github.com/versity/versitygw" in process.stderr


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM} on PATH")
def test_results_include_all_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"SHARDS": 3, "SAMPLES": 40, "LENGTH": 256, "MICRO_BATCH": 4, "TRAINED": {"micro": 1, "length": 32}}
    for name, value in small.items():
        monkeypatch.setattr(loader, name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it has the credentials of other tests
    results = loader.measure(Path(shutil.which(PROGRAM) or ""), rounds=1, seconds=0.01, steps=3)
    assert set(results["samples_per_second"]) == {
        "trainyard",
        "memory map",
        "memory map, by rows",
        "webdataset",
        "webdataset, 2 workers",
    }
    others = [rate for name, rate in results["samples_per_second"].items() if name != "trainyard"]
    assert results["ratio"] == pytest.approx(results["samples_per_second"]["trainyard"] / max(others), rel=0.01)
    assert 0 < results["data_wait"]["share"] < 1
    assert results["data_wait"]["steps"] == 3
    assert results["cold"]["samples_per_second"] > 0
