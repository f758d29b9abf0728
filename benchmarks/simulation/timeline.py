"""Simulated time: a clock that jumps from event to event."""

import heapq
from collections.abc import Callable
from itertools import count

from trainyard.clock import Clock

EPOCH = 1_790_000_000.0  # Unix time of the start
UPTIME = 1000.0  # monotonic time of the start


class Timeline(Clock):
    """A clock with events. `now`: seconds since the start. `on_advance` is called with the seconds of each jump."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_advance: Callable[[float], None] = lambda _: None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def time(self) -> float:
        """Return the Unix time, seconds."""
        return EPOCH + self.now

    def monotonic(self) -> float:
        """Return the uptime of the head, seconds."""
        return UPTIME + self.now

    def schedule(self, delay: float, action: Callable[[], None]) -> None:
        """Call `action` in `delay` seconds."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), action))

    def advance(self, until: float) -> None:
        """Jump to the next event, at most to `until`, and run all events of that moment."""
        at = min(until, self._events[0][0]) if self._events else until
        self.on_advance(at - self.now)
        self.now = at
        while self._events and self._events[0][0] <= at:
            heapq.heappop(self._events)[2]()
