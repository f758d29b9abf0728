"""Benchmark of checkpoints with a state of 12 MiB."""

import json
import subprocess
import sys

import pytest

from benchmarks.preview import ROOT

pytestmark = pytest.mark.slow


def test_asynchronous_save_waits_less_than_synchronous_save() -> None:
    command = [sys.executable, "benchmarks/checkpoint.py", "--json", "--mib", "12", "--runs", "1", "--server", "/none"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert results["stall_seconds"].keys() == {"trainyard", "dcp", "torch.save"}
    assert "go install" in results["no_s3"]
    assert results["ratio_s3"] is None
    assert 0 < results["ratio"] < 1
