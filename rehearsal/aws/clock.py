"""The account's clock: the machine's clock plus the seconds by which it was advanced.

No thread drives it: the server runs due actions before each API call and control request. Each action runs with the
clock set to its due time, in order of due times, so that a client sees the same as if every action had run on time.
"""

import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

Due = tuple[float, Callable[[], None]]
"""Unix time at which an action is due, and the action."""


class Clock:
    """Unix time in seconds. Not thread-safe: the server's locks serialize its users."""

    def __init__(self) -> None:
        self._advanced_seconds = 0.0
        self._frozen_at: float | None = None
        self._sources: list[Callable[[], Iterable[Due]]] = []

    def now(self) -> float:
        """Return the account's Unix time; while an action runs, its due time."""
        return time.time() + self._advanced_seconds if self._frozen_at is None else self._frozen_at

    def utc(self) -> datetime:
        """Return the current time as moto stores times: a naive datetime in UTC."""
        return datetime.fromtimestamp(self.now(), UTC).replace(tzinfo=None)

    def add_source(self, source: Callable[[], Iterable[Due]]) -> None:
        """Register a function that returns pending actions. It must not return an action that has run."""
        self._sources.append(source)

    def advance(self, seconds: float) -> None:
        """Move the clock forward and run the due actions. Raises ValueError unless `seconds` is positive and finite."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"advance_seconds must be above 0, not {seconds}")
        self._advanced_seconds += seconds
        self.run_due_actions()

    def run_due_actions(self) -> None:
        """Run every action that is due, earliest first."""
        now = self.now()
        while True:
            due = [entry for source in self._sources for entry in source() if entry[0] <= now]
            if not due:
                return
            when, action = min(due, key=lambda entry: entry[0])
            self._frozen_at = when
            try:
                action()
            finally:
                self._frozen_at = None


CLOCK = Clock()
