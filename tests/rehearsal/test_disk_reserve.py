"""A disk that fills up in the middle of a rehearsal: what was made goes, and the report says what happened."""

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

from rehearsal.disk_reserve import RESERVE_BYTES, Reserve
from rehearsal.hypervisor.processes import kill_marked
from tests.rehearsal.conftest import LEFT_OUT, ROOT, clean_environment, write_stack
from tests.rehearsal.test_bad_input import on_tmpfs

Usage = namedtuple("Usage", "total used free")


def test_it_gives_way_once_and_only_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = RESERVE_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    with Reserve(tmp_path) as reserve:
        assert not reserve.gives_way()
        assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
        free = 4096
        assert reserve.gives_way()
        assert not reserve.gives_way()
    assert list(tmp_path.iterdir()) == []


def test_it_takes_its_room_and_goes_with_its_end(tmp_path: Path) -> None:
    with Reserve(tmp_path):
        assert (tmp_path / "reserve").stat().st_blocks * 512 >= RESERVE_BYTES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, which takes root")
def test_a_full_disk_ends_the_rehearsal_in_one_message(tmp_path: Path) -> None:
    clone = tmp_path / "trainyard"
    shutil.copytree(ROOT, clone, ignore=LEFT_OUT)
    (clone / "build").mkdir()
    job = {"name": "line", "dataset": "none", "source": "examples/own-job", "command": ["train.py"]}
    write_stack(clone, "full", nodes=1, job=job)
    words = [sys.executable, "-m", "rehearsal", "run", "--stack", "full", "--json"]
    process = subprocess.Popen(
        [*on_tmpfs(clone / "build", "size=64m"), *words],
        cwd=clone,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told = []
    deadline = threading.Timer(240, process.kill)
    deadline.start()
    try:
        for line in process.stderr:
            told.append(line)
            if "configuring itself" in line:
                fill(Path(f"/proc/{process.pid}/root{clone}/build/filler"))  # its build/ is not the one that we see
                break
        stdout, stderr = process.communicate()
    finally:
        deadline.cancel()
        process.kill()
        process.wait()
        left = kill_marked(clone / "build/rehearsal/full")  # the mount goes with the last of them
    assert process.returncode == 1, told
    assert left == 0
    assert "Traceback" not in "".join(told) + stderr
    report = json.loads(stdout)
    (error,) = report["errors"]
    assert error.startswith(f"the disk is full: make room for {clone}/build/rehearsal/full and run it again")
    assert report["leaked"] == []
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])


def fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(65536)):  # until there is no room
            pass
