"""A transient systemd unit in which torchrun of one attempt runs: it outlives the agent that has started it.

Source: https://www.freedesktop.org/software/systemd/man/latest/systemd-run.html
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainyard.node.agent import job_process
from trainyard.node.identity import CONTAINER_NAME

PREFIX = "trainyard-attempt-"
# torchrun itself waits 30 s between SIGTERM and SIGKILL of its workers.
STOP_SECONDS = 40
PROPERTIES = {
    # SIGTERM only to the main process, which stops torchrun; when it has ended, SIGKILL to what remains.
    "KillMode": "mixed",
    "TimeoutStopSec": str(STOP_SECONDS),
    # A rank that the kernel kills for memory does not stop the others: torchrun does, and reports it.
    "OOMPolicy": "continue",
    "LimitMEMLOCK": "infinity",
    "LimitNOFILE": "1024000",
    "TasksMax": "infinity",
}
# The container keeps running and uses the GPUs if its docker client is killed.
REMOVE_CONTAINER = f"-/usr/bin/docker rm --force {CONTAINER_NAME}"
# Variables that systemd sets for one unit, systemd.exec(5): the job's unit has its own.
UNIT_VARIABLES = (
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "SYSTEMD_EXEC_PID",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
)


class JobUnit:
    """The unit of one attempt. `folder`: that of the attempt's files. `process_id`: main process; 0 if it has ended."""

    def __init__(self, run: str, attempt: int, folder: Path) -> None:
        self.attempt = attempt
        self._name, self._folder = f"{PREFIX}{run}-{attempt:04d}.service", folder
        self._main: int | None = None
        self.process_id = 0

    def start(self, command: list[str], work_folder: Path, variables: Mapping[str, str], in_container: bool) -> None:
        """Start `command` in the unit, with the agent's environment and `variables`: by its standby if it has one.

        Raises OSError with systemd's message.
        """
        is_standby = self.is_standby
        if not is_standby:
            (self._folder / job_process.STANDBY_FILE).unlink(missing_ok=True)  # of a standby that has ended
        self._write(job_process.START_FILE, command, work_folder, variables)
        if not is_standby:
            self._launch(in_container)

    def start_standby(self, command: list[str], work_folder: Path, variables: Mapping[str, str]) -> None:
        """Start the standby of a command, which waits in the unit until `start`. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(job_process.STANDBY_FILE, command, work_folder, variables)
        self._launch(in_container=False)

    @property
    def is_standby(self) -> bool:
        """Whether a standby waits in the unit."""
        return (self._folder / job_process.STANDBY_FILE).exists() and self.exit_code() is None

    def _write(self, name: str, command: list[str], work_folder: Path, variables: Mapping[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in UNIT_VARIABLES}
        job_process.write_start_file(self._folder, command, work_folder, inherited | dict(variables), name)

    def _launch(self, in_container: bool) -> None:
        (self._folder / job_process.EXIT_FILE).unlink(missing_ok=True)  # that of a standby
        properties = PROPERTIES | ({"ExecStopPost": REMOVE_CONTAINER} if in_container else {})
        options = ["--quiet", "--collect", f"--unit={self._name}", "--service-type=exec"]
        options += [f"--property={name}={value}" for name, value in properties.items()]
        _run("systemd-run", *options, sys.executable, "-I", job_process.__file__, str(self._folder))
        try:
            self.attach()
        except OSError:
            self.stop()
            raise

    def attach(self) -> None:
        """Find the main process of the unit, if it runs. Raises OSError if systemd does not respond."""
        shown = _run("systemctl", "show", "--property=MainPID", self._name)
        lines = dict(line.partition("=")[::2] for line in shown.splitlines())
        self.process_id = int(lines.get("MainPID", "0"))
        with suppress(ProcessLookupError):  # it has ended
            self._main = os.pidfd_open(self.process_id) if self.process_id else None

    def exit_code(self) -> int | None:
        """Exit code of the command; None while it runs. -SIGKILL if the unit has ended without an exit code."""
        is_running = self._main is not None and not select.select([self._main], [], [], 0)[0]
        code = job_process.read_exit_code(self._folder)  # after the check: it is written before the process ends
        return code if code is not None or is_running else -signal.SIGKILL

    def stop(self) -> None:
        """End the unit: SIGTERM to the command; SIGKILL to what remains, at the latest after STOP_SECONDS.

        Raises OSError if systemd does not end it.
        """
        try:
            _run("systemctl", "stop", self._name)
        except OSError:  # a unit that has ended is unknown
            if self.exit_code() is None:
                raise
        self.close()

    def kill(self) -> None:
        """End all processes of the unit with SIGKILL."""
        with suppress(OSError):  # the unit has ended
            _run("systemctl", "kill", "--signal=SIGKILL", self._name)
        self.stop()

    def close(self) -> None:
        """Forget the unit, which continues if it runs."""
        if self._main is not None:
            os.close(self._main)
            self._main = None


def stop_all() -> None:
    """Stop the units of all attempts that run on this node."""
    _run("systemctl", "stop", f"{PREFIX}*.service")


def _run(*command: str) -> str:
    """Output of a program of systemd. Raises OSError with its message if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"{command[0]}: {result.stderr.strip()}")
    return result.stdout
