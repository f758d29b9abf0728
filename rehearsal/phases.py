"""Measures the phases of a rehearsal: they do not overlap, and their sum is the total time."""

import time


class PhaseClock:
    """Times one phase at a time; starting a phase ends the previous one.

    `seconds` is the duration of each phase. `spans` is its start and end, as Unix times in seconds.
    """

    def __init__(self, first: str) -> None:
        self.seconds: dict[str, float] = {}
        self.spans: dict[str, tuple[float, float]] = {}
        self._name, self._phase_start = first, time.monotonic()
        self._epoch = time.time() - self._phase_start

    @property
    def current(self) -> str:
        """Name of the current phase."""
        return self._name

    def start(self, name: str) -> None:
        """End the current phase and start the phase `name`."""
        self._end_phase(time.monotonic())
        self._name = name

    def split(self, parts: dict[str, float]) -> None:
        """Move the last seconds of the current phase to other phases: `parts` is phase -> seconds, in order.

        `pulumi up` reports the phases of the launch this way after it has ended.
        """
        phase, end = self._name, time.monotonic()
        self._end_phase(end - sum(parts.values()))
        for name, seconds in parts.items():
            self._name = name
            self._end_phase(self._phase_start + seconds)
        self._name = phase

    def _end_phase(self, end: float) -> None:
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + end - self._phase_start
        # After a split the phase continues for a few milliseconds: its span is the first part.
        self.spans.setdefault(self._name, (self._epoch + self._phase_start, self._epoch + end))
        self._phase_start = end

    def finish(self) -> dict[str, float]:
        """End the last phase. Returns the seconds of each phase, in order of their starts."""
        self._end_phase(time.monotonic())
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}
