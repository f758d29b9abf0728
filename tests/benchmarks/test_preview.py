"""The preview's benchmark, at small sizes."""

import json
import subprocess
import sys

from benchmarks.preview import ROOT, imports, measure, measure_cold


def test_resources_do_not_grow_with_nodes() -> None:
    found = measure((2, 1024), runs=1)
    assert found.keys() == {"stack", "runs", "seconds", "resources", "ratio"}
    assert found["resources"]["2"] == found["resources"]["1024"] > 0
    assert found["ratio"] > 0


def test_a_cold_preview_is_compared_with_its_imports_alone() -> None:
    found = measure_cold(runs=1)
    assert found.keys() == {"cold_seconds", "ratio_import"}
    assert found["cold_seconds"].keys() == {"preview", "imports"}
    assert found["ratio_import"] > 0


def test_the_imports_are_those_of_the_graph() -> None:
    lines = imports().splitlines()
    assert "from pulumi_aws.fsx import LustreFileSystem" in lines  # of this stack, not of all
    assert "from pulumi_command.local import Command" in lines
    assert len(set(lines)) == len(lines)


def test_it_speaks_json_when_started_as_a_file() -> None:
    command = [sys.executable, "benchmarks/preview.py", "--json", "--nodes", "2", "--cold-runs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ratio"] == 1.0
    assert found["ratio_import"] > 0
