"""Finding and ending a rehearsal's processes while they come and go."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from rehearsal.hypervisor import processes
from rehearsal.hypervisor.processes import MARK, kill_marked


def test_a_process_that_ends_while_we_look_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a dying node does: the hypervisor would follow EC2 no more, and wait for its machines in vain."""
    process = subprocess.Popen(["sleep", "60"], env=os.environ | {MARK: str(tmp_path)})
    found = processes.marked

    def late(folder: Path, node: Path | None = None) -> list[psutil.Process]:
        there = found(folder, node)
        process.kill()
        process.wait()
        return there

    monkeypatch.setattr(processes, "marked", late)
    assert kill_marked(tmp_path) == 0
