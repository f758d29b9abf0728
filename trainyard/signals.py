"""Signals during a launch: one ends it by taking back what it added, and nothing cuts that."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def undisturbed() -> Iterator[None]:
    """What was added must go: a second signal does not cut that."""
    earlier = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in earlier:
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the launch as Ctrl-C does: by taking back what it added."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    earlier = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
