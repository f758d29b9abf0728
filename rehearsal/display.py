"""Terminal output of a running rehearsal: one line per event, and a status line for the current action."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from trainyard.operations.progress import Heartbeat
from trainyard.terminal import escape_control_characters
from trainyard.times import format_duration

SILENCE_SECONDS = 9.5  # longer than that of the launch, whose lines are more specific


class Display:
    """Prints lines to stderr with the seconds since the start; on a terminal, also updates a status line.

    Elsewhere it prints the status after some seconds without a line.
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._start = time.monotonic()
        self._status: Status | None = None
        self._current = ("account", "starting the emulated AWS")
        self._heartbeat = Heartbeat(self._print_status, SILENCE_SECONDS)

    def print_line(self, subject: str, text: str) -> None:
        """Print one line: seconds since the start, subject, text."""
        self._heartbeat.note_output()
        self._write(subject, text)

    def _write(self, subject: str, text: str) -> None:
        seconds, text = time.monotonic() - self._start, escape_control_characters(text)
        self.console.print(f"{seconds:6.1f} s  {subject:<10} {text}", markup=False, highlight=False, soft_wrap=True)

    def update_status(self, subject: str, text: str) -> None:
        """Replace the status: the status line of a terminal."""
        self._current = (subject, text)
        if self._status is not None:
            self._status.update(f"{subject} {escape_control_characters(text)}")

    def stop_status(self) -> None:
        """Remove the status line: from now on the output goes to a file."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._status = self.console.status(" ".join(self._current))
            self._status.start()
        else:
            self._heartbeat.start()
        return self

    def _print_status(self, seconds: float) -> None:
        """Print the status. `seconds`: since the last line."""
        subject, text = self._current
        self._write(subject, f"{text} (for {format_duration(seconds)})")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.stop()
        self.stop_status()
