"""Sleep that calls a check every 5 seconds; the check raises an error to end the wait."""

import time
from collections.abc import Callable

CHECK_SECONDS = 5.0


def sleep_with_checks(seconds: float, check: Callable[[], None]) -> None:
    """Sleep; call `check` every CHECK_SECONDS, and first at once. It raises an error to end the wait."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        check()
        time.sleep(min(remaining, CHECK_SECONDS))
