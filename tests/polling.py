"""Polling in tests: wait for a condition until a deadline, instead of sleeping for a fixed time."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], description: str, timeout_seconds: float = 60.0) -> None:
    """Poll 20 times per second until the condition is true. Fails with the description after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {timeout_seconds} s waiting for {description}"
        time.sleep(0.05)
