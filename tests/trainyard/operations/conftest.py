"""Fixtures of operation tests: a display that records its lines, fast polls, and background threads."""

import threading
from collections.abc import Callable, Iterator

import pytest

from trainyard.operations import startup

RunInBackground = Callable[[Callable[[], bool]], None]


class RecordingDisplay:
    """A display that records its lines and details."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.details: list[str] = []

    def line(self, subject: str, text: str) -> None:
        self.lines.append(f"{subject} {text}")

    def detail(self, subject: str, text: str) -> None:
        self.details.append(f"{subject} {text}")


@pytest.fixture
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL_SECONDS", 0.05)


@pytest.fixture
def run_in_background() -> Iterator[RunInBackground]:
    """Start a thread that calls a function repeatedly until it returns True or the test ends."""
    threads: list[threading.Thread] = []
    test_ended = threading.Event()

    def start(act: Callable[[], bool]) -> None:
        def call_repeatedly() -> None:
            while not test_ended.wait(0.05) and not act():
                pass

        threads.append(threading.Thread(target=call_repeatedly))
        threads[-1].start()

    yield start
    test_ended.set()
    for thread in threads:
        thread.join()
