"""pulumi_command's local command, run for real."""

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

from rehearsal.adapter.errors import CommandFailed
from rehearsal.adapter.handler import Call, Handler, Made, known

_TAIL_LINES = 40
_STOP_SECONDS = 30.0


class Command(Handler):
    """Runs `create` and `delete` in a shell, as the provider does: `dir` relative to the program's folder.

    Lines of stderr are told while they come, stdout is kept for the outputs. `skip` leaves the commands out, for
    tests of what stands around them.
    """

    type = "command:local:Command"
    keys = known("create", "update", "delete", "dir", "environment", "triggers", "addPreviousOutputInEnv")
    replaces = frozenset({"triggers"})

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def create(self, call: Call) -> Made:
        return f"{call.name}-command", self._run(call, call.inputs.get("create"), begin=lambda: not self._stopped)

    def anew(self, changed: Collection[str]) -> frozenset[str]:
        return frozenset({"stdout", "stderr"})

    def update(self, call: Call) -> dict[str, Any]:
        """Any change runs `update`; where there is none, `create` again."""
        again = call.inputs.get("update") or call.inputs.get("create")
        return self._run(call, again, begin=lambda: not self._stopped)

    def delete(self, call: Call) -> None:
        self._run(call, call.inputs.get("delete"))

    def stop(self) -> None:
        """End every command that runs now, and what it started; no `create` begins any more.

        What waits for one then sees it fail.
        """
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)
        for process in running:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)

    def _run(self, call: Call, command: str | None, begin: Callable[[], bool] = lambda: True) -> dict[str, Any]:
        if command is None or self.skip:
            return {"stdout": "", "stderr": ""}
        folder = Path(os.path.normpath(call.root / "infra" / call.inputs.get("dir", ".")))
        with self._lock:  # a stop finds every command that has begun
            if not begin():
                raise CommandFailed(f"`{command}` was not begun: stopped before")
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=folder,
                env={**os.environ, **_previous(call), **call.inputs.get("environment", {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(process)
        try:
            stdout, tail = _drain(process, call)
            status = process.wait()
        finally:
            with self._lock:
                self._running.discard(process)
        if status:
            raise CommandFailed(f"`{command}` ended with status {status}\n" + "\n".join(tail))
        return {"stdout": stdout.rstrip("\n"), "stderr": "\n".join(tail)}


def _previous(call: Call) -> dict[str, str]:
    """What the command before told, for the one after it."""
    if not call.inputs.get("addPreviousOutputInEnv", True):
        return {}
    return {f"PULUMI_COMMAND_{key.upper()}": call.outputs[key] for key in ("stdout", "stderr") if key in call.outputs}


def _drain(process: "subprocess.Popen[str]", call: Call) -> tuple[str, list[str]]:
    """All of stdout and the last lines of stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    kept: list[str] = []

    def keep(stream: IO[str]) -> None:
        kept.append(stream.read())

    reader = threading.Thread(target=keep, args=(process.stdout,))
    reader.start()
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    for line in process.stderr:
        tail.append(line.rstrip("\n"))
        call.say(tail[-1])
    reader.join()
    return "".join(kept), list(tail)


def _signal(process: "subprocess.Popen[str]", number: int) -> None:
    """To the whole session that the command began."""
    if process.poll() is None:
        os.killpg(process.pid, number)
