"""Processes of a job, which can change their names and the files that they use."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.node.agent.activity import process_tree_cpu_seconds
from trainyard.node.agent.attempt import _local_rank
from trainyard.node.agent.processes import child_processes

# Its name has brackets and is no UTF-8.
JOB = "import sys\nopen('/proc/self/comm', 'wb').write(b') \\xff (')\nprint(flush=True)\nsys.stdin.read()"


@pytest.fixture(params=["0", "12", "\N{SUPERSCRIPT TWO}", "9" * 200])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Folder of the process's stderr."""
    folder = tmp_path / str(request.param)
    folder.mkdir()
    return folder


@pytest.fixture
def job(folder: Path) -> Iterator[int]:
    with (
        (folder / "stderr.log").open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_the_name_of_a_process_may_have_any_bytes(job: int) -> None:
    assert job in child_processes(os.getpid())
    assert process_tree_cpu_seconds(job) >= 0


def test_a_rank_has_a_number(job: int, folder: Path) -> None:
    assert _local_rank(job) == {"0": 0, "12": 12}.get(folder.name)
