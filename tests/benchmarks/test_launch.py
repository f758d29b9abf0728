"""Benchmark of launches with few nodes."""

import json
import subprocess
import sys

import pytest

from benchmarks.preview import ROOT

pytestmark = pytest.mark.slow


def test_calls_per_node_decrease_with_nodes() -> None:
    command = [sys.executable, "benchmarks/launch.py", "--json", "--nodes", "1", "--nodes", "3", "--polls", "10"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert results.keys() == {"stack", "polls", "calls", "calls_per_node", "operations", "ratio"}
    assert results["operations"]["3"]["autoscaling:LaunchInstances"] == 1
    assert sum(results["operations"]["3"].values()) == results["calls"]["3"]
    assert results["ratio"] == round(results["calls"]["3"] / 3 / results["calls"]["1"], 4) < 1
