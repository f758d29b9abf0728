"""How a rehearsal shows itself while it runs: a line for what happened, a status for what happens just now."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status


class Show:
    """Lines on stderr with the seconds since the start; on a terminal also a status that is overwritten."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._began = time.monotonic()
        self._status: Status | None = None

    def line(self, subject: str, text: str) -> None:
        seconds = time.monotonic() - self._began
        self.console.print(f"{seconds:6.1f} s  {subject:<10} {text}", markup=False, highlight=False, soft_wrap=True)

    def detail(self, subject: str, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{subject} {text}")

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._status = self.console.status("account")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
