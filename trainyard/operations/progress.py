"""How a launch shows itself: rich progress on a terminal, plain lines elsewhere. All on stderr, short, not repeated."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Display(Protocol):
    """Where the launch says what it does."""

    def line(self, subject: str, text: str) -> None:
        """Something happened to a phase or a node."""

    def detail(self, subject: str, text: str) -> None:
        """What it is at just now: shown where a line can be overwritten."""


class Lines:
    """Plain lines with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: dict[str, str] = {}

    def line(self, subject: str, text: str) -> None:
        if self._last.get(subject) != text:
            self._last[subject] = text
            print(f"{time.monotonic() - self._began:6.1f} s  {subject:<20} {text}", file=sys.stderr, flush=True)

    def detail(self, subject: str, text: str) -> None:
        """Nothing: a line that can't be overwritten is not worth it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""


class Live:
    """One row a subject, with its latest text and how long it has taken."""

    def __init__(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._rows: dict[str, TaskID] = {}

    def _show(self, subject: str, text: str) -> None:
        description = f"{subject:<20} {text}"
        if subject in self._rows:
            self._progress.update(self._rows[subject], description=description)
        else:
            self._rows[subject] = self._progress.add_task(description, total=None)

    line = detail = _show

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def display() -> Lines | Live:
    return Live() if sys.stderr.isatty() else Lines()
