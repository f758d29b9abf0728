"""Terminal output of a running rehearsal: one line per event, and a status line for the current action."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status


class Display:
    """Prints lines to stderr with the seconds since the start; on a terminal, also updates a status line."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._start = time.monotonic()
        self._status: Status | None = None

    def print_line(self, subject: str, text: str) -> None:
        """Print one line: seconds since the start, subject, text."""
        seconds = time.monotonic() - self._start
        self.console.print(f"{seconds:6.1f} s  {subject:<10} {text}", markup=False, highlight=False, soft_wrap=True)

    def update_status(self, subject: str, text: str) -> None:
        """Replace the status line; does nothing when stderr is not a terminal."""
        if self._status is not None:
            self._status.update(f"{subject} {text}")

    def stop_status(self) -> None:
        """Remove the status line: from now on the output goes to a file."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._status = self.console.status("account")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_status()
