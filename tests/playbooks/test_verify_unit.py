"""The script that verifies a service of a node: programs with the names of systemd's replace these."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.machines import ROOT

SCRIPT = ROOT / "playbooks/files/verify-unit.sh"


def verify(folder: Path, main_pid: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a systemctl that reports this main process. `sleep` returns at once."""
    programs = {
        "systemctl": f'[ "$1" = show ] && echo MainPID={main_pid} || echo active',
        "journalctl": "echo 'ModuleNotFoundError: x'",
        "sleep": "",
    }
    for name, text in programs.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["sh", SCRIPT, *arguments], env=environment, capture_output=True, text=True)


def test_active_unit_is_verified(tmp_path: Path) -> None:
    assert verify(tmp_path, 7, "a.service").returncode == 0


def test_unit_is_ready_when_its_main_process_has_written_its_id(tmp_path: Path) -> None:
    ready = tmp_path / "a.ready"
    ready.write_text("7")
    assert verify(tmp_path, 7, "a.service", str(ready)).returncode == 0


@pytest.mark.parametrize(("content", "main_pid"), [(None, 7), ("6", 7), ("0", 0)])
def test_unit_that_ends_again_and_again_is_not_ready(tmp_path: Path, content: str | None, main_pid: int) -> None:
    ready = tmp_path / "a.ready"
    if content is not None:
        ready.write_text(content)  # of an earlier process
    result = verify(tmp_path, main_pid, "a.service", str(ready))
    assert result.returncode == 1
    assert "a.service is not ready after 60 s" in result.stderr
    assert "ModuleNotFoundError" in result.stderr
