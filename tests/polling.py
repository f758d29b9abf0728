"""Waiting in tests: by looking again until a deadline, never by sleeping for luck."""

import time
from collections.abc import Callable


def eventually(done: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Look every twentieth of a second; fails naming what did not come."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.05)
