"""Progress display on stderr: one row per subject on a terminal, plain lines elsewhere. stdout is for results."""

import os
import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Display(Protocol):
    """Receives the progress of an operation. A subject is a phase or a node."""

    def line(self, subject: str, text: str) -> None:
        """Display an event of a subject."""

    def detail(self, subject: str, text: str) -> None:
        """Display the current activity of a subject, where a row can be overwritten."""


class PlainDisplay:
    """Prints one line per event, with the seconds since the start; omits repeated lines and details."""

    def __init__(self) -> None:
        self._start_time = time.monotonic()
        self._last_texts: dict[str, str] = {}

    def line(self, subject: str, text: str) -> None:
        """Print the event, unless it repeats the subject's last event."""
        if self._last_texts.get(subject) != text:
            self._last_texts[subject] = text
            seconds = time.monotonic() - self._start_time
            try:
                sys.stderr.write(f"{seconds:6.1f} s  {subject:<20} {text}\n")
                sys.stderr.flush()
            except BrokenPipeError:  # the reader was killed: a rollback must continue
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def detail(self, subject: str, text: str) -> None:
        """Omit the detail: printed lines cannot be overwritten."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: no resource is open."""


class LiveDisplay:
    """Displays one row per subject, with its latest text and elapsed time."""

    def __init__(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._rows: dict[str, TaskID] = {}

    def _update_row(self, subject: str, text: str) -> None:
        description = f"{subject:<20} {text}"
        if subject in self._rows:
            self._progress.update(self._rows[subject], description=description)
        else:
            self._rows[subject] = self._progress.add_task(description, total=None)

    line = detail = _update_row

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def create_display() -> PlainDisplay | LiveDisplay:
    """Return a live display when stderr is a terminal, else a plain one."""
    return LiveDisplay() if sys.stderr.isatty() else PlainDisplay()
