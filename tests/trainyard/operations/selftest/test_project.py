"""The folder in which the selftest runs commands: time limit, interrupt, passphrase and lines of the output."""

import stat
from pathlib import Path

import psutil
import pytest

from tests.conftest import REGION
from tests.polling import eventually
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.operations.selftest import project as module
from trainyard.operations.selftest.project import ActionError, SelftestProject, error_lines, progress_lines


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SelftestProject:
    """Return a project that is created with a Pulumi CLI without effect."""
    pulumi = tmp_path / "pulumi"
    pulumi.write_text("#!/bin/sh\n")
    pulumi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    project = SelftestProject(tmp_path / "selftest-1", REGION)
    project.create()
    return project


def test_passphrase_is_readable_by_the_user_only(project: SelftestProject) -> None:
    file = project.folder / "passphrase"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text()) > 30


def test_command_ends_at_its_time_limit(project: SelftestProject) -> None:
    with pytest.raises(ActionError, match="the time limit of the action"):
        project.run(["sleep", "600"], 0.001, RecordingDisplay())


def has_ended(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_programs_of_a_command_that_ignores_the_interrupt_are_killed(
    project: SelftestProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERRUPT_TIMEOUT_SECONDS", 0.1)
    script, display = "trap '' INT; sleep 60 & echo $!; wait", RecordingDisplay()
    with pytest.raises(ActionError):
        project.run(["sh", "-c", script], 0.005, display)
    eventually(lambda: has_ended(int(display.lines[0].split()[-1])), "the end of sleep", 10)


def test_errors_are_the_diagnostics_without_warnings() -> None:
    output = " +  a creating\nDiagnostics:\n  a (x):\n    warning: w\n    error: e\nResources:\n    + 3 created\n"
    assert error_lines(output) == ["Diagnostics:", "  a (x):", "    error: e"]


def test_without_diagnostics_the_last_lines_are_the_errors() -> None:
    assert error_lines("one\n\ntwo\n") == ["one", "two"]


def test_progress_lines_are_listed_once() -> None:
    line = "  12.0 s  head                 10.42.0.5 ready"
    output = f" +  command:local:Command launch creating (5s) {line}\nDiagnostics:\n    {line}\n"
    assert progress_lines(output) == [line.strip()]
