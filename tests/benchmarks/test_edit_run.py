"""Benchmark of edits: which of them launch instances."""

import json
import subprocess
import sys

import pytest

from benchmarks.preview import ROOT

pytestmark = pytest.mark.slow


def test_only_more_nodes_launch_instances() -> None:
    command = [sys.executable, "benchmarks/edit_run.py", "--json"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert process.returncode == 0, process.stderr
    edits = json.loads(process.stdout.splitlines()[-1])["edits"]
    launched = {name: edit["launched"] for name, edit in edits.items()}
    assert launched == {
        "fresh launch": 2,
        "argument": 0,
        "code": 0,
        "requirements": 0,
        "node role": 0,
        "one more node": 1,
    }
