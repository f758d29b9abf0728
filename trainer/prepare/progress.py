"""Displays the progress of a run: a bar on a terminal, otherwise a log line every ten seconds."""

import logging
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

_LOG_INTERVAL_SECONDS = 10.0
log = logging.getLogger(__name__)


class ProgressDisplay:
    """Bytes of the source that are done, of `total`. An earlier run has done the first `before` of them."""

    def __init__(self, subject: str, total: int, before: int) -> None:
        """`subject`: name of the dataset."""
        self._subject, self._total, self._done, self._before = subject, total, before, before
        self._start = self._last_log = time.monotonic()
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
        """Add `count` bytes."""
        self._done += count
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._row, completed=self._done)
        elif now - self._last_log >= _LOG_INTERVAL_SECONDS:
            self._last_log = now
            rate = (self._done - self._before) / 1e6 / (now - self._start)
            percent = 100 * self._done / max(1, self._total)
            log.info("%s: %.0f %% of %.1f MB, %.1f MB/s", self._subject, percent, self._total / 1e6, rate)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
