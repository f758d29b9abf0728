"""Benchmark of previews with few runs."""

import json
import subprocess
import sys

from benchmarks.preview import ROOT, import_script, measure, measure_cold


def test_resources_do_not_grow_with_nodes() -> None:
    results = measure((2, 1024), runs=1)
    assert results.keys() == {"stack", "runs", "seconds", "resources", "ratio"}
    assert results["resources"]["2"] == results["resources"]["1024"] > 0
    assert results["ratio"] > 0


def test_cold_preview_is_compared_with_imports() -> None:
    results = measure_cold(runs=1)
    assert results.keys() == {"cold_seconds", "ratio_import"}
    assert results["cold_seconds"].keys() == {"preview", "imports"}
    assert results["ratio_import"] > 0


def test_import_script_has_the_classes_of_the_stack() -> None:
    lines = import_script().splitlines()
    assert "from pulumi_aws.fsx import LustreFileSystem" in lines  # a resource of this stack only
    assert "from pulumi_command.local import Command" in lines
    assert len(set(lines)) == len(lines)


def test_script_prints_json() -> None:
    command = [sys.executable, "benchmarks/preview.py", "--json", "--nodes", "2", "--cold-runs", "1"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert results["ratio"] == 1.0
    assert results["ratio_import"] > 0
