"""Time limit of a training step, from the measured duration of recent steps."""

import statistics
from collections import deque

from trainyard.config.training.config import TimeoutsConfig

MINIMUM_LIMIT_SECONDS = 60.0
MEDIAN_FACTOR = 10.0
_RECENT_STEPS = 50


class StepLimit:
    """Time limit of the next training step of this process.

    It never exceeds the limit of the first step, and thus not the fixed timeout of process groups.
    """

    def __init__(self, config: TimeoutsConfig) -> None:
        self._config = config
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)

    def record(self, step_seconds: float) -> None:
        """Record the duration of a complete step."""
        self._recent.append(step_seconds)

    @property
    def seconds(self) -> float:
        """Seconds without progress after which the next step has hung."""
        if not self._recent:
            return self._config.first_step_seconds
        if self._config.step_seconds is not None:
            return self._config.step_seconds
        limit = max(MINIMUM_LIMIT_SECONDS, MEDIAN_FACTOR * statistics.median(self._recent))
        return min(limit, self._config.first_step_seconds)
