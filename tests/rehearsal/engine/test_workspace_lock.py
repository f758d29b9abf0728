"""The CLI's lock on the stack of a kept rehearsal: a running CLI is awaited, the lock of a killed one is removed."""

import json
import subprocess
from pathlib import Path

import pytest

from rehearsal.engine import workspace as module
from rehearsal.engine.workspace import Workspace
from trainyard.config.project import read_project


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose `pulumi` records its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "pulumi"
    program.write_text(f'#!/bin/sh\necho "$1 $2 $3" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (tmp_path / "pulumi").mkdir()
    return Workspace(tmp_path / "pulumi", read_project(tmp_path), "a", {})


def lock(workspace: Workspace, stack: str, process: int) -> Path:
    folder = workspace.folder / "state/.pulumi/locks/organization/trainyard" / stack
    folder.mkdir(parents=True)
    file = folder / "1.json"
    file.write_text(json.dumps({"pid": process}))
    return file


def calls(workspace: Workspace) -> list[str]:
    file = workspace.folder.parent / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_running_cli_is_awaited(workspace: Workspace) -> None:
    with subprocess.Popen(["sleep", "60"]) as running:
        file = lock(workspace, "a", running.pid)
        lines: list[str] = []

        def end(text: str) -> None:
            lines.append(text)
            file.unlink()
            running.kill()

        workspace.wait_until_unlocked(end)
    assert lines == [f"waits until pulumi (process {running.pid}) has ended"]
    assert calls(workspace) == []


def test_lock_of_a_killed_cli_is_removed(workspace: Workspace) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    lock(workspace, "a", ended.pid)
    workspace.wait_until_unlocked(pytest.fail)
    assert calls(workspace) == ["cancel --yes a"]


def test_lock_of_another_stack_is_ignored(workspace: Workspace) -> None:
    lock(workspace, "b", 1)
    workspace.wait_until_unlocked(pytest.fail)
    assert calls(workspace) == []


def test_cli_that_does_not_end_is_an_error(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UNLOCK_TIMEOUT_SECONDS", 0.2)
    lock(workspace, "a", 1)
    with pytest.raises(TimeoutError):
        workspace.wait_until_unlocked(lambda text: None)
