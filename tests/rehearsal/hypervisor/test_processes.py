"""Finding and killing the processes of a rehearsal while processes start and end."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from rehearsal.hypervisor import processes
from rehearsal.hypervisor.processes import REHEARSAL_VARIABLE, kill_rehearsal_processes


def test_process_that_ends_during_the_search_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error would stop the thread of the hypervisor, which then never removes its machines."""
    process = subprocess.Popen(["sleep", "60"], env=os.environ | {REHEARSAL_VARIABLE: str(tmp_path)})
    original = processes.find_processes

    def find_and_kill(folder: Path, node: Path | None = None) -> list[psutil.Process]:
        matches = original(folder, node)
        process.kill()
        process.wait()
        return matches

    monkeypatch.setattr(processes, "find_processes", find_and_kill)
    assert kill_rehearsal_processes(tmp_path) == 0
