"""Signal handling while a launch or bake holds resources: a signal leads to a rollback, which no signal interrupts."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


def ignore_signals() -> AbstractContextManager[None]:
    """Ignore SIGINT and SIGTERM, so that a second signal does not interrupt a rollback."""
    # A function, because programs that are started meanwhile would inherit SIG_IGN.
    return _handle_signals(lambda number, frame: None, signal.SIGINT, signal.SIGTERM)


def sigterm_as_interrupt() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on SIGTERM, so that it leads to the same rollback as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    return _handle_signals(interrupt, signal.SIGTERM)


@contextmanager
def _handle_signals(handler: Handler, *numbers: int) -> Iterator[None]:
    previous = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, previous_handler in previous:
            signal.signal(number, previous_handler)
