"""Text that other machines wrote, for a terminal: its control characters are printed as escape sequences.

A terminal executes them: ESC ] 52 writes to the clipboard, for example (XTerm Control Sequences, "Operating System
Commands"). Characters that change the direction of text are included (Unicode Standard Annex 9).
"""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escape_control_characters(text: str) -> str:
    r"""Return the text with each control character, except newline and tab, as in Python: ESC becomes `\x1b`."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
