"""Benchmark of startup with two nodes."""

import json
import subprocess
import sys

import pytest

from benchmarks.preview import ROOT

pytestmark = pytest.mark.booted


def test_script_reports_the_ratio_to_one_node() -> None:
    command = [sys.executable, "benchmarks/startup.py", "--json", "--nodes", "1", "--nodes", "2"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])
    elapsed, cpu = results["wall_seconds"], results["cpu_seconds"]
    assert results["ratio"] == pytest.approx(
        elapsed["2"] / max(elapsed["1"], cpu["2"] / results["processors"]), rel=0.01
    )
    assert results["slowest_tasks"]
    assert 0 < results["ratio_calls"] < 2  # nodes may read each other's events
