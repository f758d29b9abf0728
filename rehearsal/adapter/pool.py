"""Threads that make and delete things side by side, and their end."""

from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

LOOK_SECONDS = 0.2
Result = TypeVar("Result")


def some_done(futures: Collection[Future[Result]]) -> set[Future[Result]]:
    """Wait for the first of them: those that are done then.

    It wakes up to look for signals: one that the system gave to another thread interrupts no wait of the main thread.
    """
    while True:
        done, _ = wait(futures, LOOK_SECONDS, return_when=FIRST_COMPLETED)
        if done:
            return done


@contextmanager
def settled(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """When left, nothing of the pool runs any more: also where a KeyboardInterrupt cuts the very wait for it."""
    try:
        with pool:
            yield pool
    except KeyboardInterrupt:
        pool.shutdown()
        raise
