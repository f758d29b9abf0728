"""What tests of the launch share: a display that remembers, quick polls, and nodes that act meanwhile."""

import threading
from collections.abc import Callable, Iterator

import pytest

from trainyard.operations import startup as bringup

Meanwhile = Callable[[Callable[[], bool]], None]


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, subject: str, text: str) -> None:
        self.lines.append(f"{subject} {text}")

    def detail(self, subject: str, text: str) -> None:
        """Not looked at."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringup, "POLL_SECONDS", 0.05)


@pytest.fixture
def meanwhile() -> Iterator[Meanwhile]:
    """Starts a thread that calls what it is given until that is done."""
    threads: list[threading.Thread] = []
    ending = threading.Event()

    def start(act: Callable[[], bool]) -> None:
        def work() -> None:
            while not ending.wait(0.05) and not act():
                pass

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield start
    ending.set()
    for thread in threads:
        thread.join()
