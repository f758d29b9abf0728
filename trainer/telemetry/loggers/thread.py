"""The thread of a logger: training waits for no service, and no failure of a service ends it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

from trainer.telemetry.loggers.logger import Logger, Point

CLOSE_TIMEOUT_SECONDS = 30.0  # of all loggers, at the end of the job
RETRY_SECONDS = 300.0
BATCH = 50  # steps: MLflow accepts 1,000 figures in a request
_MAX_POINTS = 10_000  # that wait for the service; the oldest are discarded first
_log = logging.getLogger(__name__)


class LoggerThread:
    """Runs a logger in a daemon thread. After a failure, which is logged once, it tries again every RETRY_SECONDS."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._changed = threading.Condition()
        self._points: deque[Point] = deque(maxlen=_MAX_POINTS)
        self._is_publish_due = False
        self._exit_code: int | None = None  # of the job, from its end on
        self._is_open = self._has_warned = False
        self._thread = threading.Thread(target=self._run, name=f"metrics to {logger.service}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def log(self, point: Point) -> None:
        """Log the figures of a step, later than those of earlier calls."""
        with self._changed:
            self._points.append(point)
            self._changed.notify()

    def publish(self) -> None:
        """Upload the files of the logger."""
        with self._changed:
            self._is_publish_due = True
            self._changed.notify()

    def end(self, exit_code: int) -> None:
        """End the run with the exit code of the job. The thread then sends what remains, and ends."""
        with self._changed:
            self._exit_code = exit_code
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, at most `seconds`; log how many steps are not sent then."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._warn(TimeoutError(f"it has not responded within {seconds:.0f} s"))
        if self._points:
            _log.info("%d steps were not sent to %s", len(self._points), self._logger.service)

    def _run(self) -> None:
        is_complete = False
        while not is_complete:
            is_last_attempt = self._exit_code is not None
            try:
                is_complete = self._send()
            except Exception as error:  # those of the libraries have no common class
                self._is_open = False
                self._warn(error)
                if is_last_attempt:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._exit_code is not None, RETRY_SECONDS)

    def _send(self) -> bool:
        """Wait for points and send a batch. Returns whether the job has ended, and all are sent."""
        if not self._is_open:
            self._logger.open()
            self._is_open = True
        with self._changed:
            self._changed.wait_for(lambda: self._points or self._is_publish_due or self._exit_code is not None)
            points = list(islice(self._points, BATCH))
        if points:
            self._logger.log(points)
            self._remove(points)
        elif self._is_publish_due:
            self._is_publish_due = False
            self._logger.publish()
        elif self._exit_code is not None:
            self._logger.close(self._exit_code)
            return True
        return False

    def _remove(self, sent: list[Point]) -> None:
        with self._changed:
            while self._points and self._points[0].step <= sent[-1].step:
                self._points.popleft()

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = " ".join(str(error).split()) or type(error).__name__
            _log.warning(
                "metrics are not sent to %s: %s. Training continues, and this is tried again every %.0f minutes. %s",
                self._logger.service,
                reason[:500].rstrip("."),
                RETRY_SECONDS / 60,
                self._logger.advice,
            )


def end_loggers(threads: Sequence[LoggerThread], exit_code: int) -> None:
    """End the runs of all loggers; wait at most CLOSE_TIMEOUT_SECONDS."""
    deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
    for thread in threads:
        thread.end(exit_code)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
