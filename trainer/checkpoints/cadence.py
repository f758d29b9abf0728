"""When the next checkpoint is due: after a number of steps or seconds, or by the measured time of a save.

The default interval is the optimum of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps" (2006), https://doi.org/10.1016/j.future.2004.11.016, which extends J. W. Young's first-order estimate,
the square root of 2 x cost x mean time between failures (1974), https://doi.org/10.1145/361147.361115.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from trainyard.config.training.config import CheckpointConfig

# Bounds of the default interval. The shortest is also that until the first save, which measures the time of a save.
MINIMUM_INTERVAL_SECONDS = 60.0
MAXIMUM_INTERVAL_SECONDS = 1800.0
_MEASURED_SAVES = 5  # the first save allocates memory, and a single save may be slow


@dataclass(frozen=True)
class SaveTimes:
    """Measured times of one complete save."""

    stall_seconds: float  # by which it delayed training
    seconds: float  # from its start until it was complete


def optimum_interval(cost_seconds: float, mean_seconds_between_failures: float) -> float:
    """Return the seconds between the starts of saves that lose the least time to saves and repeated steps.

    `cost_seconds`: time by which a save delays training.
    """
    if cost_seconds >= 2 * mean_seconds_between_failures:
        return mean_seconds_between_failures + cost_seconds
    ratio = cost_seconds / (2 * mean_seconds_between_failures)
    return math.sqrt(2 * cost_seconds * mean_seconds_between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9)


class Cadence:
    """Decides on one rank when a checkpoint is due. Any save, due or requested, starts a new interval."""

    def __init__(self, config: CheckpointConfig, nodes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`nodes`: number of nodes of the job; a failure of any of them stops it."""
        self._config, self._clock = config, clock
        self._mean_seconds_between_failures = config.mean_hours_between_failures * 3600 / nodes
        self._measured: deque[SaveTimes] = deque(maxlen=_MEASURED_SAVES)
        self._started_at: float | None = None  # of the interval; None until the first step is complete

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at the end of this step."""
        if self._config.interval_steps is not None:
            return step % self._config.interval_steps == 0
        if self._started_at is None:
            self._started_at = self._clock()
        return self._clock() - self._started_at >= self.interval_seconds

    def record_start(self) -> None:
        """Record that a save starts."""
        self._started_at = self._clock()

    def record_times(self, times: SaveTimes) -> None:
        """Record the measured times of a complete save."""
        self._measured.append(times)

    @property
    def interval_seconds(self) -> float:
        """Seconds between the starts of two saves: at least the duration of a save, since saves do not overlap."""
        duration = statistics.median(times.seconds for times in self._measured) if self._measured else 0.0
        if self._config.interval_seconds is not None:
            return max(duration, self._config.interval_seconds)
        if not self._measured:
            return MINIMUM_INTERVAL_SECONDS
        cost = statistics.median(times.stall_seconds for times in self._measured)
        optimum = optimum_interval(cost, self._mean_seconds_between_failures)
        return max(duration, MINIMUM_INTERVAL_SECONDS, min(optimum, MAXIMUM_INTERVAL_SECONDS))
