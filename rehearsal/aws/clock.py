"""The account's clock: the machine's own, and ahead of it by what it was moved forward.

No thread drives it: before each call and each control page the server lets time pass. What fell due since then happens
as of its own due time, in order, so nobody can tell it from an account in which it happened at once.
"""

import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

Due = tuple[float, Callable[[], None]]


class Clock:
    """Unix time in seconds. Not made for threads: the server's turns keep its users apart."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._held: float | None = None
        self._sources: list[Callable[[], Iterable[Due]]] = []

    def now(self) -> float:
        return time.time() + self._ahead if self._held is None else self._held

    def utc(self) -> datetime:
        """Now, as moto keeps times: UTC without saying so."""
        return datetime.fromtimestamp(self.now(), UTC).replace(tzinfo=None)

    def watch(self, source: Callable[[], Iterable[Due]]) -> None:
        """Ask this source for what is to happen, and when. An act that was done must not be told again."""
        self._sources.append(source)

    def advance(self, seconds: float) -> None:
        """Move forward. Raises ValueError when that is no forward."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"advance_seconds must be above 0, not {seconds}")
        self._ahead += seconds
        self.pass_time()

    def pass_time(self) -> None:
        """Let happen what is due."""
        now = self.now()
        while True:
            due = [each for source in self._sources for each in source() if each[0] <= now]
            if not due:
                return
            when, act = min(due, key=lambda each: each[0])
            self._held = when
            try:
                act()
            finally:
                self._held = None


CLOCK = Clock()
