"""A disk that becomes full during a rehearsal: the resources are destroyed and the report names the cause."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import pytest

from rehearsal.disk_reserve import RESERVE_BYTES, DiskReserve
from rehearsal.hypervisor.processes import kill_rehearsal_processes
from tests.rehearsal.conftest import COPY_IGNORE, ROOT, clean_environment, write_stack
from tests.rehearsal.test_bad_input import tmpfs_command

pytestmark = pytest.mark.slow

Usage = namedtuple("Usage", "total used free")


def test_reserve_is_released_once_and_only_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = RESERVE_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    with DiskReserve(tmp_path) as reserve:
        assert not reserve.release_if_disk_full()
        assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
        free = 4096
        assert reserve.release_if_disk_full()
        assert not reserve.release_if_disk_full()
    assert list(tmp_path.iterdir()) == []


def test_reserve_allocates_its_space_and_is_deleted_on_exit(tmp_path: Path) -> None:
    with DiskReserve(tmp_path):
        assert (tmp_path / "reserve").stat().st_blocks * 512 >= RESERVE_BYTES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_full_disk_is_reported_as_one_error(tmp_path: Path) -> None:
    clone = tmp_path / "trainyard"
    shutil.copytree(ROOT, clone, ignore=COPY_IGNORE)
    (clone / "build").mkdir()
    job = {"name": "line", "source": "examples/custom-job", "command": ["train.py"]}
    write_stack(clone, "full", nodes=1, job=job)
    command = [sys.executable, "-m", "rehearsal", "run", "--stack", "full", "--json"]
    process = subprocess.Popen(
        [*tmpfs_command(clone / "build", "size=64m"), *command],
        cwd=clone,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    deadline = threading.Timer(240, process.kill)
    deadline.start()
    try:
        for line in process.stderr:
            lines.append(line)
            if "node playbook started" in line:
                fill(Path(f"/proc/{process.pid}/root{clone}/build/filler"))  # build/ is a mount in its namespace
                break
        stdout, stderr = process.communicate()
    finally:
        deadline.cancel()
        process.kill()
        process.wait()
        killed = kill_rehearsal_processes(clone / "build/rehearsal/full")  # the mount is removed with the last of them
    assert process.returncode == 1, lines
    assert killed == 0
    assert "Traceback" not in "".join(lines) + stderr
    report = json.loads(stdout)
    (error,) = report["errors"]
    assert error.startswith(f"the disk of {clone}/build/rehearsal/full is full")
    assert report["leaked"] == []
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])


def fill(file: Path) -> None:
    """Write to a file until the disk is full."""
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(65536)):
            pass
