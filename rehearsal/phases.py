"""The clock of a run: disjoint phases whose sum is the wall time."""

import time


class PhaseClock:
    """One phase at a time; entering one ends the other. `spans`: when each one was, Unix seconds."""

    def __init__(self, first: str) -> None:
        self.seconds: dict[str, float] = {}
        self.spans: dict[str, tuple[float, float]] = {}
        self._name, self._since = first, time.monotonic()
        self._epoch = time.time() - self._since

    def enter(self, name: str) -> None:
        self._close(time.monotonic())
        self._name = name

    def split(self, parts: dict[str, float]) -> None:
        """Give the last seconds of the current phase to phases of their own, as a program that just ended told them."""
        phase, end = self._name, time.monotonic()
        self._close(end - sum(parts.values()))
        for name, seconds in parts.items():
            self._name = name
            self._close(self._since + seconds)
        self._name = phase

    def _close(self, end: float) -> None:
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + end - self._since
        # What follows a split is a remnant of milliseconds: a phase is where it first was.
        self.spans.setdefault(self._name, (self._epoch + self._since, self._epoch + end))
        self._since = end

    def done(self) -> dict[str, float]:
        """All phases in order of their beginning; the last one ends now."""
        self._close(time.monotonic())
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}
