"""The clock of a run: disjoint phases whose sum is the wall time."""

import time


class PhaseClock:
    """One phase at a time; entering one ends the other."""

    def __init__(self, first: str) -> None:
        self.seconds: dict[str, float] = {}
        self._name, self._since = first, time.monotonic()

    def enter(self, name: str) -> None:
        self._close()
        self._name = name

    def split(self, parts: dict[str, float]) -> None:
        """Move seconds of the current phase to phases of their own, as a program that ran in it measured them."""
        for name, seconds in parts.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self._since += seconds

    def _close(self) -> None:
        now = time.monotonic()
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._since = now

    def done(self) -> dict[str, float]:
        """All phases in order of their beginning; the last one ends now."""
        self._close()
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}
