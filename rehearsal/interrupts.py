"""Ctrl-C and SIGTERM: the first ends a rehearsal by taking down what was made, the second one ends it at once."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# `timeout`, make and some shells signal a process and its group: what comes within this time is one signal.
ONE_SECONDS = 1.0
AGAIN_SECONDS = 0.05
INTERRUPTED = "interrupted: what was made goes now"
_SHOW_CURSOR = "\x1b[?25h"


class Interrupts:
    """Handles both signals from its making on: one a process, made in the main thread.

    As long as nothing is made (until `keep`), any of them ends the process. Afterwards the first one is a
    KeyboardInterrupt inside `raised`, at once or at its beginning; elsewhere it is only `seen`.
    """

    def __init__(self) -> None:
        self.seen = False
        self._words, self._keeps = "interrupted: nothing was made", False
        self._raises = self._pending = False
        self._first = 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        signal.signal(signal.SIGALRM, lambda *_: self._interrupt())
        sys.unraisablehook = self._swallowed

    def keep(self, last_words: str) -> None:
        """From here on things are made, which must go. `last_words` are those of an end by the second signal."""
        self._words, self._keeps = last_words, True

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Where a KeyboardInterrupt leaves nothing half done that is not mended."""
        self._raises = True
        try:
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._raises = False

    def _swallowed(self, told: "sys.UnraisableHookArgs") -> None:
        """Python ignores what is raised while it clears an object away, and there a signal may come as anywhere."""
        if self.seen and told.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            sys.__unraisablehook__(told)

    def _interrupt(self) -> None:
        """Now, or where it is next allowed."""
        if self._raises:
            raise KeyboardInterrupt
        self._pending = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._keeps and not self.seen:
            self.seen, self._first = True, time.monotonic()
            self._interrupt()
        elif not self._keeps or time.monotonic() - self._first > ONE_SECONDS:
            # Past all buffers and `finally`s: this may come between any two lines.
            cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
            os.write(2, f"{cursor}rehearsal: {self._words}\n".encode())
            os._exit(1)
