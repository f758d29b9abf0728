"""Signals during a launch: one ends it by taking back what it added, and nothing cuts that."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


def undisturbed() -> AbstractContextManager[None]:
    """What was added must go: a second signal does not cut that."""
    return _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM)


def interruptible() -> AbstractContextManager[None]:
    """SIGTERM ends the launch as Ctrl-C does: by taking back what it added."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    return _handled(interrupt, signal.SIGTERM)


@contextmanager
def _handled(handler: Handler, *numbers: int) -> Iterator[None]:
    earlier = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, before in earlier:
            signal.signal(number, before)
