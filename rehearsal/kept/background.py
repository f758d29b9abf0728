"""Moves a rehearsal to a background process, which uses the terminal until the rehearsal is ready to be kept."""

import os
import shlex
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Never

from trainyard.models.kept_rehearsal import KeptRehearsal

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STANDARD_STREAMS = (0, 1, 2)


class Background:
    """The background process of a kept rehearsal, which started it with `start`.

    `is_announced`: whether the foreground process has ended, and the output goes to a file.
    """

    def __init__(self, ready: int) -> None:
        self._ready = ready
        self.is_announced = False

    @classmethod
    def start(cls) -> "Background":
        """Continue in a new process with its own session; only there does this return.

        Call it before any thread starts. The foreground process forwards signals. It exits when the rehearsal is ready:
        with status 0, or 1 after errors. If the rehearsal ends before, it exits with its status.
        """
        receiving, ready = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        child = os.fork()
        if child:
            os.close(ready)
            _wait_in_foreground(child, receiving)
        os.close(receiving)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        return cls(ready)

    def announce(self, kept: KeptRehearsal, log: Path) -> None:
        """Write all further output to `log`, and end the foreground process.

        Raises BrokenPipeError if the foreground process has been killed.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        self.is_announced = True
        null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for source, target in zip((null, output, output), _STANDARD_STREAMS, strict=True):
            os.dup2(source, target)
        os.close(null)
        os.close(output)
        with os.fdopen(self._ready, "w") as pipe:
            pipe.write(kept.model_dump_json())


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How a rehearsal is kept: for at most `hours`, by the process `background`, started with these arguments."""

    hours: float
    background: Background
    arguments: tuple[str, ...]


def _wait_in_foreground(child: int, receiving: int) -> Never:
    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM if number == signal.SIGHUP else number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    with os.fdopen(receiving) as pipe:
        announcement = pipe.read()
    if announcement:
        kept = KeptRehearsal.model_validate_json(announcement)
        as_json = "--json" in kept.arguments
        sys.stdout.write(f"{announcement if as_json else describe(kept)}\n")
        sys.stdout.flush()
        os._exit(1 if kept.errors else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def describe(kept: KeptRehearsal) -> str:
    """Return how to use the kept rehearsal and how to end it, in one line."""
    commands = "status, why, logs, results, run, shell, stop" + (", up, destroy" if kept.pulumi_folder else "")
    return (
        f"the rehearsal is kept. To use it, in another shell: source {shlex.quote(kept.environment)}, then trainyard "
        f"COMMAND -s {kept.stack} (COMMAND: {commands}). To end it: trainyard rehearse --down -s {kept.stack}"
    )
