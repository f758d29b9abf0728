"""Threads that make and delete things side by side, and their end."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def settled(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """When left, nothing of the pool runs any more: also where a KeyboardInterrupt cuts the very wait for it."""
    try:
        with pool:
            yield pool
    except KeyboardInterrupt:
        pool.shutdown()
        raise
