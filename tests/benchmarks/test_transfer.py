"""The benchmark of transfers to S3: what it says where no server is installed, and what it measures with one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.preview import ROOT
from benchmarks.s3_server import PROGRAM, version


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "benchmarks/transfer.py", "--json", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)


def test_a_missing_server_is_told_in_one_line() -> None:
    done = run("--server", "/none")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "go install github.com/versity/versitygw" in done.stderr


def test_the_version_is_read_from_the_program(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_bytes(b"\x00mod\tgithub.com/versity/versitygw\tv1.8.0\th1:x\n")
    assert version(program) == "versitygw v1.8.0"


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM} on PATH")
def test_both_ways_are_measured() -> None:
    done = run("--mib", "12", "--runs", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ratio"] == min(found["ratio_up"], found["ratio_down"]) > 0
    assert found["server"].startswith("versitygw v")
