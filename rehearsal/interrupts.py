"""Signal handling: the first Ctrl-C or SIGTERM starts the destroy, a second one exits immediately."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# `timeout`, make and some shells signal a process and its process group: signals within this time count as one.
SAME_SIGNAL_SECONDS = 1.0
RETRY_SECONDS = 0.05
INTERRUPTED_STATUS = 130  # as of a shell whose command ended by SIGINT
INTERRUPTED = "interrupted: destroy deletes the created resources"
_CURSOR_VISIBLE = "\x1b[?25h"


class Interrupts:
    """Handles SIGINT and SIGTERM from its creation on. Create one per process, in the main thread.

    Until `require_cleanup` is called, each signal ends the process. After that, the first signal raises
    KeyboardInterrupt inside `raising_interrupts`, immediately or when the block is entered; elsewhere it only sets
    `received`.
    """

    def __init__(self) -> None:
        self.received = False
        self._exit_message, self._requires_cleanup = "interrupted: no resources were created", False
        self._may_raise = self._pending = False
        self._is_catching = self._is_caught = False
        self._first_signal_time = 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        signal.signal(signal.SIGALRM, lambda *_: self._interrupt())
        sys.unraisablehook = self._handle_unraisable

    def require_cleanup(self, exit_message: str) -> None:
        """From now on resources are created, which must be destroyed. A second signal prints `exit_message`."""
        self._exit_message, self._requires_cleanup = exit_message, True

    @contextmanager
    def raising_interrupts(self) -> Iterator[None]:
        """Let the first signal raise KeyboardInterrupt in this block. The caller must clean up after the block."""
        self._may_raise = True
        try:
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False

    @contextmanager
    def catching_signals(self) -> Iterator[Callable[[], bool]]:
        """Count no signal of this block as an interrupt. Yields a function that returns whether one has arrived."""
        self._is_catching, self._is_caught = True, False
        try:
            yield lambda: self._is_caught
        finally:
            self._is_catching = False

    def _handle_unraisable(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Raise the KeyboardInterrupt again: Python ignores exceptions in finalizers, where a signal may arrive."""
        if self.received and unraisable.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        else:
            sys.__unraisablehook__(unraisable)

    def _interrupt(self) -> None:
        if self._may_raise:
            raise KeyboardInterrupt
        self._pending = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_catching:
            self._is_caught = True
        elif self._requires_cleanup and not self.received:
            self.received, self._first_signal_time = True, time.monotonic()
            self._interrupt()
        elif not self._requires_cleanup or time.monotonic() - self._first_signal_time > SAME_SIGNAL_SECONDS:
            # Write and exit directly: the signal may interrupt any buffered write or `finally` block.
            cursor = _CURSOR_VISIBLE if sys.stderr.isatty() else ""
            os.write(2, f"{cursor}rehearsal: {self._exit_message}\n".encode())
            os._exit(INTERRUPTED_STATUS)
