"""Progress display of operations."""

import sys

import pytest

from tests.polling import eventually
from trainyard.operations import progress
from trainyard.operations.progress import LiveDisplay, PlainDisplay


def test_plain_display_omits_repeated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainDisplay() as display:
        for text in ("node playbook started", "node playbook started", "ready"):
            display.line("i-1", text)
            display.detail("i-1", "a task")
    output = capsys.readouterr()
    assert [line.split()[-1] for line in output.err.splitlines()] == ["started", "ready"]
    assert output.out == ""  # stdout is for the result


def test_plain_display_prints_the_current_activity_in_a_silence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT_POLL_SECONDS", 0.01)
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.05)
    printed = ""
    with PlainDisplay() as display:
        display.line("nodes", "2 of 2 launched")
        display.detail("startup", "waiting for the job's start")

        def has_waited() -> bool:
            nonlocal printed
            printed += capsys.readouterr().err
            return printed.count("waiting for the job's start (for ") >= 2

        eventually(has_waited, "two lines on the wait")


def test_live_display_has_a_row_per_subject(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveDisplay() as display:
        display.line("i-1", "node playbook started")
        display.detail("i-1", "pytorch: Import torch")
        display.line("i-2", "ready")
        rows = [task.description for task in display._progress.tasks]
    assert [row.split()[0] for row in rows] == ["i-1", "i-2"]
    assert "Import torch" in rows[0]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveDisplay), (False, PlainDisplay)])
def test_display_is_live_only_on_a_terminal(terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert isinstance(progress.create_display(), kind)
