"""Local commands of pulumi_command, executed in a shell."""

import os
import subprocess
import threading
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from rehearsal.adapter.errors import CommandFailedError
from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys

_TAIL_LINES = 40


class Command(Handler):
    """Runs `create`, `update` and `delete` in a shell, as the provider does, in `dir` relative to the program's folder.

    It reports each line of stderr as the command writes it, and returns stdout as an output.
    `skip`: run no commands, for tests of the other resources.
    """

    type = "command:local:Command"
    keys = input_keys("create", "update", "delete", "dir", "environment", "addPreviousOutputInEnv", "triggers")
    replace_on_changes = frozenset({"triggers"})

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def create(self, call: HandlerCall) -> CreateResult:
        """Run the `create` command."""
        return f"{call.name}-command", self._run(call, call.inputs.get("create"), unless_stopped=True)

    def outputs_changed_by(self, changed: Collection[str]) -> frozenset[str]:
        """Every update runs a command, which produces new output."""
        return frozenset({"stdout", "stderr"})

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Run `update` after any change of the inputs, or `create` when there is no `update`."""
        command = call.inputs.get("update") or call.inputs.get("create")
        return self._run(call, command, unless_stopped=True)

    def read(self, call: HandlerCall) -> ReadResult:
        """Return the state as it is: AWS has none of a command."""
        return ReadResult(inputs=dict(call.inputs))

    def delete(self, call: HandlerCall) -> None:
        """Run the `delete` command."""
        self._run(call, call.inputs.get("delete"))

    def stop(self) -> None:
        """Kill the shell of every running command, and start no further `create` or `update`.

        As with the provider, the shell's child processes are not killed. A stopped command fails with
        CommandFailedError when they have closed their outputs.
        """
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.kill()

    def _run(self, call: HandlerCall, command: str | None, unless_stopped: bool = False) -> dict[str, Any]:
        if command is None or self.skip:
            return {"stdout": "", "stderr": ""}
        folder = Path(os.path.normpath(call.folder / call.inputs.get("dir", ".")))
        with self._lock:  # so that stop() knows every command that has started
            if unless_stopped and self._stopped:
                raise CommandFailedError(f"`{command}` was not started, because the run was stopped")
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=folder,
                env={**os.environ, **_previous_output(call), **call.inputs.get("environment", {})},
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
            raise CommandFailedError(f"`{command}` ended with status {status}\n" + "\n".join(tail))
        return {"stdout": stdout.rstrip("\n"), "stderr": "\n".join(tail)}


def _previous_output(call: HandlerCall) -> dict[str, str]:
    """Return the output of the previous command, as environment variables of the next one."""
    if not call.inputs.get("addPreviousOutputInEnv", True):
        return {}
    return {f"PULUMI_COMMAND_{key.upper()}": call.outputs[key] for key in ("stdout", "stderr") if key in call.outputs}


def _drain(process: "subprocess.Popen[str]", call: HandlerCall) -> tuple[str, list[str]]:
    """Return all of stdout and the last lines of stderr. Report each line of stderr as it arrives."""
    assert process.stdout is not None
    assert process.stderr is not None
    output: list[str] = []

    def read(stream: IO[str]) -> None:
        output.append(stream.read())

    reader = threading.Thread(target=read, args=(process.stdout,))
    reader.start()
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    for line in process.stderr:
        tail.append(line.rstrip("\n"))
        call.on_output(tail[-1])
    reader.join()
    return "".join(output), list(tail)
