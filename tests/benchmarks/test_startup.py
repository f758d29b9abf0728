"""Benchmark of startup: its ratios, and a run with one node."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import startup
from benchmarks.preview import ROOT


def test_ratio_is_to_one_node_or_to_the_limit_of_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_cluster(nodes: int) -> startup.StartupResult:
        return startup.StartupResult(20.0 * nodes, 50.0 * nodes, 400 * nodes * nodes, {}, 1.0)

    monkeypatch.setattr(startup, "start_cluster", start_cluster)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    results = startup.measure((1, 4))
    assert results["ratio"] == pytest.approx(80 / 100)  # 200 CPU seconds on two processors
    assert results["ratio_calls"] == 1


@pytest.mark.booted
def test_script_prints_json() -> None:
    command = [sys.executable, "benchmarks/startup.py", "--json", "--nodes", "1"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])
    assert results["wall_seconds"]["1"] > 0
    assert results["slowest_tasks"]
