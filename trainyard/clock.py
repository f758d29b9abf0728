"""The clock of a component that also runs on simulated time."""

import time


class Clock:
    """The clock of this machine. A simulation replaces it."""

    def time(self) -> float:
        """Return the Unix time, seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since an unspecified point, which no change of the system time affects."""
        return time.monotonic()
