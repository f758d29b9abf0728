"""Benchmark of checkpoints with a state of 12 MiB."""

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.preview import ROOT

pytestmark = pytest.mark.slow


def run(script: str) -> dict[str, Any]:
    command = [sys.executable, script, "--json", "--mib", "12", "--runs", "1", "--server", "/none"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert process.returncode == 0, process.stderr
    results: dict[str, Any] = json.loads(process.stdout)
    return results


def test_load_is_measured_in_each_layout() -> None:
    assert run("benchmarks/checkpoint_load.py")["ratios"].keys() == {
        f"{layout} from folder" for layout in ("replicated", "sharded", "resharded")
    }


def test_asynchronous_save_waits_less_than_synchronous_save() -> None:
    results = run("benchmarks/checkpoint.py")
    assert results["stall_seconds"].keys() == {"trainyard", "dcp", "torch.save"}
    assert "go install" in results["s3_unavailable"]
    assert results["ratio_s3"] is None
    assert 0 < results["ratio"] < 1
