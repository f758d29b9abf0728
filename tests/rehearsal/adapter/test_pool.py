"""Waiting for threads in the main thread, where signals are handled."""

import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from rehearsal.adapter.pool import some_done
from tests.polling import eventually


@pytest.fixture
def interrupting() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, earlier)


def waits(thread: int) -> bool:
    """Whether this thread is in the midst of `some_done`."""
    frame: FrameType | None = sys._current_frames()[thread]
    if frame is None or frame.f_code.co_name != "wait":
        return False
    while frame is not None and frame.f_code is not some_done.__code__:
        frame = frame.f_back
    return frame is not None


def test_a_signal_that_another_thread_received_cuts_the_wait(interrupting: None) -> None:
    """As the system chooses one where the process was stopped when the signal came."""
    main, ending = threading.get_ident(), threading.Event()

    def work() -> bool:
        eventually(lambda: waits(main), "the wait", 10.0)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return ending.wait(10)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        with pytest.raises(KeyboardInterrupt):
            some_done([future])
        ending.set()
        assert future.result(), "the wait went on until the work was done"
