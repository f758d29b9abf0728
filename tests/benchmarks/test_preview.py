"""The preview's benchmark, at small sizes."""

import json
import subprocess
import sys

from benchmarks.preview import ROOT, measure


def test_resources_do_not_grow_with_nodes() -> None:
    found = measure((2, 4), runs=1)
    assert found.keys() == {"stack", "runs", "seconds", "resources", "ratio"}
    assert found["resources"]["2"] == found["resources"]["4"] > 0
    assert found["ratio"] > 0


def test_it_speaks_json_when_started_as_a_file() -> None:
    command = [sys.executable, "benchmarks/preview.py", "--json", "--nodes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ratio"] == 1.0
