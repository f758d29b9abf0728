"""How a launch shows itself."""

import sys

import pytest

from trainyard.operations import progress
from trainyard.operations.progress import Lines, Live


def test_plain_lines_are_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as show:
        for text in ("configuring itself", "configuring itself", "ready"):
            show.line("i-1", text)
            show.detail("i-1", "a task")
    told = capsys.readouterr()
    assert [line.split()[-1] for line in told.err.splitlines()] == ["itself", "ready"]
    assert told.out == ""  # stdout is for the one line of JSON


def test_a_terminal_gets_one_row_a_subject(capsys: pytest.CaptureFixture[str]) -> None:
    with Live() as show:
        show.line("i-1", "configuring itself")
        show.detail("i-1", "pytorch: Ask torch")
        show.line("i-2", "ready")
        rows = [task.description for task in show._progress.tasks]
    assert [row.split()[0] for row in rows] == ["i-1", "i-2"]
    assert "Ask torch" in rows[0]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("terminal", "kind"), [(True, Live), (False, Lines)])
def test_the_display_follows_stderr(terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert isinstance(progress.display(), kind)
