"""Signals while a launch or bake holds resources: a signal leads to a rollback, which no signal interrupts.

The Pulumi program starts commands through `infra/launcher`. On Ctrl-C Pulumi's command provider kills the launcher,
and at a second Ctrl-C the engine kills the process group of the provider. So a command of the launcher has a
separate session, and a launch treats the end of the launcher as a signal. Sources: pulumi-command, `run` in
commandOutputs.go, which uses exec.CommandContext; pulumi, KillChildren in sdk/go/common/util/cmdutil/child_unix.go.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

LAUNCHER_PID = "TRAINYARD_LAUNCHER_PID"
PARENT_POLL_SECONDS = 0.2
Handler = Callable[[int, FrameType | None], None] | signal.Handlers


def ignore_signals() -> AbstractContextManager[None]:
    """Ignore SIGINT and SIGTERM, so that a second signal does not interrupt a rollback."""
    # A function, because programs that are started meanwhile would inherit SIG_IGN.
    return _handle_signals(lambda number, frame: None, signal.SIGINT, signal.SIGTERM)


def sigterm_as_interrupt() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on SIGTERM, so that it leads to the same rollback as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt("interrupted: its parent process has ended" if _is_orphan() else f"signal {number}")

    return _handle_signals(interrupt, signal.SIGTERM)


@contextmanager
def waiting_for_child(process: "subprocess.Popen[Any]") -> Iterator[None]:
    """In this block signals do not end this process: the terminal sends SIGINT to the child, SIGTERM interrupts it."""
    with (
        _handle_signals(lambda number, frame: None, signal.SIGINT),
        _handle_signals(lambda number, frame: process.send_signal(signal.SIGINT), signal.SIGTERM),
    ):
        yield


def separate_from_launcher() -> None:
    """Move a command of the launcher to a separate session: a signal to the process group does not reach it."""
    if LAUNCHER_PID in os.environ:
        os.setsid()


def terminate_with_launcher() -> None:
    """Send SIGTERM to this process when the launcher has ended; without a launcher, do nothing.

    Polls the parent: prctl(PR_SET_PDEATHSIG) exists on Linux only, and reports the end of a thread of the parent too.
    """
    if LAUNCHER_PID in os.environ:
        threading.Thread(target=_terminate_as_orphan, daemon=True).start()


def _terminate_as_orphan() -> None:
    while not _is_orphan():
        time.sleep(PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_orphan() -> bool:
    """Return whether the launcher that started this process has ended."""
    launcher = os.environ.get(LAUNCHER_PID)
    return launcher is not None and os.getppid() != int(launcher)


@contextmanager
def _handle_signals(handler: Handler, *numbers: int) -> Iterator[None]:
    previous = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, previous_handler in previous:
            signal.signal(number, previous_handler)
