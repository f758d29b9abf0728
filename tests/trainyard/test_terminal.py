"""Control characters of texts that nodes wrote do not reach the terminal."""

from collections.abc import Callable

import pytest

from rehearsal.display import Display
from trainyard.operations.progress import PlainDisplay
from trainyard.terminal import escape_control_characters

CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x07"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (CLIPBOARD, r"\x1b]52;c;cm0gLXJmIC8=\x07"),
        ("\x1b[2J\rok\x9b1A\x7f", r"\x1b[2J\rok\x9b1A\x7f"),
        ("exe.\u202etxt", r"exe.\u202etxt"),
        ("two\nlines\tand ünïcode 漢", "two\nlines\tand ünïcode 漢"),
    ],
)
def test_control_characters_are_escaped(text: str, escaped: str) -> None:
    assert escape_control_characters(text) == escaped


@pytest.mark.parametrize(
    "write",
    [lambda: PlainDisplay().line("node", CLIPBOARD), lambda: Display().print_line("job", CLIPBOARD)],
    ids=["trainyard", "rehearsal"],
)
def test_progress_lines_have_no_control_characters(
    write: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    write()
    output = capfd.readouterr().err
    assert r"\x1b]52" in output
    assert "\x1b" not in output
