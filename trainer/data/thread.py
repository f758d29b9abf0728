"""What an iterator yields, made by a thread ahead of who takes it."""

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
_PATIENCE = 1.0  # seconds for what is being made when nobody wants it any more: it may wait for storage that is away


@dataclass(frozen=True)
class _End:
    error: BaseException | None


def made_ahead(source: Iterator[T], number: int) -> Generator[T, None, None]:
    """The same items, up to `number` of them ready before they are asked for. An error comes where it arose.

    The thread ends with the source, or when the iterator is closed or dropped.
    """
    # Small items are taken by ten thousands a second: these queues cost half of what a threading.Condition does.
    room: SimpleQueue[None] = SimpleQueue()
    ready: SimpleQueue[tuple[T] | _End] = SimpleQueue()
    closed = False

    def make() -> None:
        error: BaseException | None = None
        try:
            while True:
                room.get()
                if closed:
                    break
                ready.put((next(source),))
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        ready.put(_End(error))

    for _ in range(number):
        room.put(None)
    thread = threading.Thread(target=make, name="made-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(found := ready.get(), _End):
            room.put(None)
            yield found[0]
        if found.error is not None:
            raise found.error
    finally:
        closed = True
        room.put(None)
        thread.join(timeout=_PATIENCE)
