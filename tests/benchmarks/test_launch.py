"""The launch's benchmark, at small sizes."""

import json
import subprocess
import sys

from benchmarks.preview import ROOT


def test_calls_a_node_fall_as_nodes_grow() -> None:
    command = [sys.executable, "benchmarks/launch.py", "--json", "--nodes", "1", "--nodes", "3", "--polls", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == {"stack", "polls", "calls", "calls_per_node", "operations", "ratio"}
    assert found["operations"]["3"]["autoscaling:LaunchInstances"] == 1
    assert sum(found["operations"]["3"].values()) == found["calls"]["3"]
    assert found["ratio"] == round(found["calls"]["3"] / 3 / found["calls"]["1"], 4) < 1
