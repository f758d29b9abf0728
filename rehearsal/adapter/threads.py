"""Waits for worker threads such that signals still reach the main thread, and joins them after an interrupt."""

from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

POLL_SECONDS = 0.2
Result = TypeVar("Result")


def wait_for_any(futures: Collection[Future[Result]]) -> set[Future[Result]]:
    """Wait until at least one future is done, and return those that are done.

    The wait polls so that the main thread handles signals: a signal that the system delivers to another thread does
    not interrupt a wait of the main thread.
    """
    while True:
        done, _ = wait(futures, POLL_SECONDS, return_when=FIRST_COMPLETED)
        if done:
            return done


@contextmanager
def joining_threads(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """Join the pool's threads at exit, also when a KeyboardInterrupt interrupts that join."""
    try:
        with pool:
            yield pool
    except KeyboardInterrupt:
        pool.shutdown()
        raise
