"""How far it is: a bar on a terminal, elsewhere a line every ten seconds. All on stderr."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_EVERY = 10.0  # seconds


class Display:
    """Bytes of the source that are done, of `total`; of those `before` were done by an earlier run."""

    def __init__(self, subject: str, total: int, before: int) -> None:
        self._subject, self._total, self._done, self._before = subject, total, before, before
        self._began = self._told = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._row = self._bar.add_task(subject, total=total, completed=before)

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._row, completed=self._done)
        elif now - self._told >= _EVERY:
            self._told = now
            rate = (self._done - self._before) / 1e6 / (now - self._began)
            share = 100 * self._done / max(1, self._total)
            say(f"{self._subject}: {share:.0f} % of {self._total / 1e6:.1f} MB, {rate:.1f} MB/s")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


def say(text: str) -> None:
    print(f"prepare: {text}", file=sys.stderr, flush=True)
