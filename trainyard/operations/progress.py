"""Progress display on stderr: one row per subject on a terminal, plain lines elsewhere. stdout is for results."""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from trainyard.terminal import escape_control_characters
from trainyard.times import format_duration

HEARTBEAT_POLL_SECONDS = 0.5
SILENCE_SECONDS = 8.0  # with the poll, a line at least every 10 s
SHORT_INTERVALS = 15  # two minutes
LONG_SILENCE_SECONDS = 60.0


class Display(Protocol):
    """Receives the progress of an operation. A subject is a phase or a node."""

    def line(self, subject: str, text: str) -> None:
        """Display an event of a subject."""

    def detail(self, subject: str, text: str) -> None:
        """Display the current activity of a subject, where a row can be overwritten."""


class TransferProgress:
    """Displays the transferred part of `total` bytes as the detail of a subject. Threads may call `add`."""

    def __init__(self, display: Display, subject: str, total: int) -> None:
        self._display, self._subject, self._total = display, subject, total
        self._done, self._lock = 0, threading.Lock()

    def add(self, count: int) -> None:
        """Count transferred bytes."""
        with self._lock:
            self._done += count
            self._display.detail(self._subject, f"{decimal(self._done)} of {decimal(self._total)}")


class Heartbeat:
    """Calls `beat` in a thread when `note_output` has not been called for a while; `beat` prints a line.

    The interval is `silence_seconds`, by default SILENCE_SECONDS. After SHORT_INTERVALS beats it is
    LONG_SILENCE_SECONDS: a wait may take an hour.
    """

    def __init__(self, beat: Callable[[float], None], silence_seconds: float | None = None) -> None:
        self._beat, self._silence_seconds = beat, silence_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._silent_since = self._last_output = time.monotonic()
        self._beats = 0

    def note_output(self) -> None:
        """Record that a line was printed."""
        self._silent_since = self._last_output = time.monotonic()
        self._beats = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; no beat follows. Without a start, do nothing."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(HEARTBEAT_POLL_SECONDS):
            interval = self._silence_seconds or SILENCE_SECONDS
            if self._beats >= SHORT_INTERVALS:
                interval = LONG_SILENCE_SECONDS
            now = time.monotonic()
            if now - self._last_output >= interval:
                self._last_output = now
                self._beats += 1
                self._beat(now - self._silent_since)


class PlainDisplay:
    """Prints one line per event, with the seconds since the start; omits repeated lines.

    As a context manager it also prints the current activity after some seconds without a line.
    """

    def __init__(self) -> None:
        self._start_time = time.monotonic()
        self._last_texts: dict[str, str] = {}
        self._details: dict[str, str] = {}  # the latest last
        self._heartbeat = Heartbeat(self._print_activity)

    def line(self, subject: str, text: str) -> None:
        """Print the event, unless it repeats the subject's last event."""
        self._details.pop(subject, None)
        if self._last_texts.get(subject) != text:
            self._last_texts[subject] = text
            self._heartbeat.note_output()
            self._write(subject, text)

    def detail(self, subject: str, text: str) -> None:
        """Store the detail: printed lines cannot be overwritten."""
        self._details.pop(subject, None)
        self._details[subject] = text

    def _print_activity(self, seconds: float) -> None:
        """Print the latest detail, or the last line without one. `seconds`: since the last line."""
        current = self._details or self._last_texts
        if current:
            subject = next(reversed(current))
            self._write(subject, f"{current[subject]} (for {format_duration(seconds)})")

    def _write(self, subject: str, text: str) -> None:
        seconds, text = time.monotonic() - self._start_time, escape_control_characters(text)
        try:
            sys.stderr.write(f"{seconds:6.1f} s  {subject:<20} {text}\n")
            sys.stderr.flush()
        except BrokenPipeError:  # the reader was killed: a rollback must continue
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def __enter__(self) -> Self:
        self._heartbeat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.stop()


class LiveDisplay:
    """Displays one row per subject, with its latest text and elapsed time."""

    def __init__(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._rows: dict[str, TaskID] = {}

    def _update_row(self, subject: str, text: str) -> None:
        description = f"{subject:<20} {escape_control_characters(text)}"
        if subject in self._rows:
            self._progress.update(self._rows[subject], description=description)
        else:
            self._rows[subject] = self._progress.add_task(description, total=None)

    line = detail = _update_row

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def create_display() -> PlainDisplay | LiveDisplay:
    """Return a live display when stderr is a terminal, else a plain one."""
    return LiveDisplay() if sys.stderr.isatty() else PlainDisplay()
