"""Writes the progress file of this rank."""

import logging
import time
from collections.abc import Callable

from trainer.settings import Environment
from trainyard.models.rank_progress import RankProgress, progress_file

_INTERVAL_SECONDS = 1.0
_log = logging.getLogger(__name__)


class ProgressFile:
    """The progress file of this rank in METRICS_DIR."""

    def __init__(self, environment: Environment, clock: Callable[[], float] = time.monotonic) -> None:
        environment.metrics_dir.mkdir(parents=True, exist_ok=True)
        self._rank, self._file = environment.rank, progress_file(environment.metrics_dir, environment.rank)
        self._clock, self._next_at, self._has_failed = clock, clock(), False

    def write(self, step: int, step_seconds: float, busy_seconds: float | None) -> None:
        """Replace the file, unless it was replaced within the last second. A failure is logged once."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + _INTERVAL_SECONDS
        progress = RankProgress(
            rank=self._rank, step=step, time=time.time(), step_seconds=step_seconds, busy_seconds=busy_seconds
        )
        partial = self._file.with_suffix(".tmp")
        try:
            partial.write_text(progress.model_dump_json())
            partial.replace(self._file)
        except OSError as error:
            if not self._has_failed:
                _log.warning("progress of rank %d not written: %s", self._rank, error)
            self._has_failed = True
