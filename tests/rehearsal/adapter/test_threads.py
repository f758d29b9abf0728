"""Waits of the main thread, which handles signals, for other threads."""

import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from rehearsal.adapter.threads import wait_for_any
from tests.polling import eventually


@pytest.fixture
def interrupt_signal() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, previous)


def is_waiting(thread: int) -> bool:
    """Return whether this thread is inside `wait_for_any`."""
    frame: FrameType | None = sys._current_frames()[thread]
    if frame is None or frame.f_code.co_name != "wait":
        return False
    while frame is not None and frame.f_code is not wait_for_any.__code__:
        frame = frame.f_back
    return frame is not None


def test_signal_delivered_to_another_thread_interrupts_the_wait(interrupt_signal: None) -> None:
    """The system may deliver a signal to any thread, for example when the process was stopped."""
    main, finish = threading.get_ident(), threading.Event()

    def work() -> bool:
        eventually(lambda: is_waiting(main), "the wait", 10.0)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return finish.wait(10)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        with pytest.raises(KeyboardInterrupt):
            wait_for_any([future])
        finish.set()
        assert future.result(), "the wait continued until the work ended"
