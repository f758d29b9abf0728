"""Benchmark of transfers to S3, without and with a server."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.preview import ROOT
from benchmarks.s3_server import PROGRAM, read_version


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "benchmarks/transfer.py", "--json", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)


def test_missing_server_is_reported_in_one_line() -> None:
    process = run("--server", "/none")
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert "go install github.com/versity/versitygw" in process.stderr


def test_version_is_read_from_the_program(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_bytes(b"\x00mod\tgithub.com/versity/versitygw\tv1.8.0\th1:x\n")
    assert read_version(program) == "versitygw v1.8.0"


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM} on PATH")
def test_both_directions_are_measured() -> None:
    process = run("--mib", "12", "--runs", "1")
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert results["ratio"] == min(results["ratio_up"], results["ratio_down"]) > 0
    assert results["server"].startswith("versitygw v")
