"""The bring-up's benchmark, at small sizes."""

import json
import subprocess
import sys

import pytest

from benchmarks.preview import ROOT

pytestmark = pytest.mark.booted


def test_it_tells_what_a_node_more_costs() -> None:
    command = [sys.executable, "benchmarks/bringup.py", "--json", "--nodes", "1", "--nodes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    wall, cpu = found["wall_seconds"], found["cpu_seconds"]
    assert found["ratio"] == pytest.approx(wall["2"] / max(wall["1"], cpu["2"] / found["processors"]), rel=0.01)
    assert found["slowest_tasks"]
    assert 0 < found["ratio_calls"] < 2  # two nodes read each other's words, or not
