"""Removal of environments that no process uses."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.node.environments import node as environments

MAPPING = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.truncate(file, 4096)
mapped = mmap.mmap(file, 4096)
print(flush=True)
sys.stdin.read()
"""


def test_environments_of_running_processes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the job may use files with any names."""
    for name in ("used", "unused", "node", "job"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    for variable, name in (("NODE_VENV", "node"), ("JOB_VENV", "job")):
        monkeypatch.setattr(environments, variable, tmp_path / name)
    file = bytes(tmp_path / "used") + b"/\xff"
    with subprocess.Popen(
        [sys.executable, "-c", MAPPING, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        environments.remove_unused()
        process.kill()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["job", "node", "used"]
