"""Runs an iterator in a thread, so that its items are ready before they are needed."""

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
_CLOSE_TIMEOUT_SECONDS = 1.0  # for the item in progress after a close: it may wait for unavailable storage


@dataclass(frozen=True)
class _End:
    error: BaseException | None


def prefetch_in_thread(source: Iterator[T], count: int) -> Generator[T, None, None]:
    """Yield the items of `source`, with up to `count` items ready in advance. An error is raised in its place.

    The thread ends with the source, or when the iterator is closed or garbage-collected.
    """
    # Small items arrive at ten thousands per second: these queues cost half as much as a threading.Condition.
    free_slots: SimpleQueue[None] = SimpleQueue()
    ready: SimpleQueue[tuple[T] | _End] = SimpleQueue()
    closed = False

    def run() -> None:
        error: BaseException | None = None
        try:
            while True:
                free_slots.get()
                if closed:
                    break
                ready.put((next(source),))
        except StopIteration:
            pass
        except BaseException as exception:
            error = exception
        ready.put(_End(error))

    for _ in range(count):
        free_slots.put(None)
    thread = threading.Thread(target=run, name="prefetch-batches", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            free_slots.put(None)
            yield item[0]
        if item.error is not None:
            raise item.error
    finally:
        closed = True
        free_slots.put(None)
        thread.join(timeout=_CLOSE_TIMEOUT_SECONDS)
