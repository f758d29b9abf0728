"""A transient systemd unit in which torchrun of one attempt or health check runs: it outlives the agent.

Source: https://www.freedesktop.org/software/systemd/man/latest/systemd-run.html
"""

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.node.agent import job_process
from trainyard.node.identity import CONTAINER_NAME
from trainyard.node.job_user import JobUser, create_job_file, create_job_folder, read_job_file

PREFIX, HEALTH_CHECK_PREFIX = "trainyard-attempt-", "trainyard-health-check-"
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
# Variables of the agent that the job does not inherit: those that systemd sets for one unit, systemd.exec(5), and the
# address of the metadata service, which the job must not use.
UNIT_VARIABLES = (
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "SYSTEMD_EXEC_PID",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
)
METADATA_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
# https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#Sandboxing
SANDBOX = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",  # the file system is read-only, except /dev, /proc, /sys and ReadWritePaths
    "ProtectHome": "read-only",
    "PrivateTmp": "yes",
    "ProtectControlGroups": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
}


def sandbox(user: JobUser, writable: Sequence[Path]) -> list[tuple[str, str]]:
    """Properties of a unit for processes of `user` that may write in these folders only; folders need not exist."""
    paths = [("ReadWritePaths", shlex.quote(f"-{folder}")) for folder in writable]
    return [("User", user.name), ("Group", user.name), *SANDBOX.items(), *paths]


@dataclass(frozen=True)
class Launch:
    """How a unit starts. `writable`: folders that the job may write. `prepare`: commands that root runs before."""

    writable: Sequence[Path] = ()
    prepare: Sequence[Sequence[str]] = ()
    in_container: bool = False


class JobUnit:
    """The unit of one attempt, or of one health check. `process_id`: main process; 0 before it has started and after it
    has ended.

    `number`: of the attempt or health check. `folder`: that of its files. `user`: of the processes in the unit; None:
    that of the agent. `files`: the folder with the files of the command. `prepared`: the folder with those of the
    preparation.
    """

    def __init__(self, run: str, number: int, folder: Path, user: JobUser | None = None, prefix: str = PREFIX) -> None:
        self.number = number
        self._name, self._folder, self._user = f"{prefix}{run}-{number:04d}.service", folder, user
        self.files, self.prepared = folder / "process", folder / "prepare"
        self._main: int | None = None
        self._is_preparing = False
        self.process_id = 0

    def start(
        self, command: list[str], work_folder: Path, variables: Mapping[str, str], launch: Launch | None = None
    ) -> None:
        """Start `command` in the unit, with the agent's environment and `variables`: by its standby if it has one.

        Raises OSError with systemd's message.
        """
        is_standby = self.is_standby
        if not is_standby:
            self._create_folders()
            (self.files / job_process.STANDBY_FILE).unlink(missing_ok=True)  # of a standby that has ended
        self._write(job_process.START_FILE, command, work_folder, variables)
        if not is_standby:
            self._launch(launch or Launch())

    def start_standby(
        self, command: list[str], work_folder: Path, variables: Mapping[str, str], launch: Launch | None = None
    ) -> None:
        """Start the standby of a command, which waits in the unit until `start`. Raises OSError."""
        self._create_folders()
        self._write(job_process.STANDBY_FILE, command, work_folder, variables)
        self._launch(launch or Launch())

    @property
    def is_standby(self) -> bool:
        """Whether a standby waits in the unit."""
        return (self.files / job_process.STANDBY_FILE).exists() and self.exit_code() is None

    def _create_folders(self) -> None:
        self.prepared.mkdir(parents=True, exist_ok=True)
        create_job_folder(self.files, self._user, 0o700)

    def _write(self, name: str, command: list[str], work_folder: Path, variables: Mapping[str, str]) -> None:
        inherited = _inherited_variables() | dict(variables)
        inherited.pop(METADATA_VARIABLE, None)
        content = job_process.start_content(command, work_folder, inherited)
        create_job_file(self.files / name, content, self._user)

    def _launch(self, launch: Launch) -> None:
        for folder in (self.files, self.prepared):  # of a standby, of an earlier start
            (folder / job_process.EXIT_FILE).unlink(missing_ok=True)
        properties = [*PROPERTIES.items(), *(sandbox(self._user, [*launch.writable, self.files]) if self._user else [])]
        program = [sys.executable, "-I", job_process.__file__]
        if launch.in_container:
            properties.append(("ExecStopPost", REMOVE_CONTAINER))
        if launch.prepare:
            content = {"commands": launch.prepare, "variables": _inherited_variables()}
            (self.prepared / job_process.PREPARE_FILE).write_text(json.dumps(content))
            # The prefix +: as root, without the restrictions of the unit (systemd.service(5)).
            command = shlex.join([*program, job_process.PREPARE, str(self.prepared)])
            properties += [("ExecStartPre", f"+{command}"), ("TimeoutStartSec", "infinity")]
        options = ["--quiet", "--collect", f"--unit={self._name}", "--service-type=exec"]
        options += ["--no-block"] if launch.prepare else []
        options += [f"--property={name}={value}" for name, value in properties]
        try:
            _run("systemd-run", *options, *program, str(self.files))
        except OSError as error:
            raise OSError(f"{error} (check 'journalctl -u {self._name}' on the node)") from error
        try:
            self.attach()
        except OSError:
            self.stop()
            raise

    def attach(self) -> None:
        """Find the main process of the unit, if it runs. Raises OSError if systemd does not respond."""
        shown = _run("systemctl", "show", "--property=MainPID,ActiveState,Job", self._name)
        lines = dict(line.partition("=")[::2] for line in shown.splitlines())
        self.process_id = int(lines.get("MainPID", "0"))
        # With a job of systemd, the start is queued.
        is_queued = lines.get("Job", "") not in {"", "0"} and lines.get("ActiveState") == "inactive"
        self._is_preparing = not self.process_id and (lines.get("ActiveState") == "activating" or is_queued)
        with suppress(ProcessLookupError):  # it has ended
            self._main = os.pidfd_open(self.process_id) if self.process_id else None

    def exit_code(self) -> int | None:
        """Exit code of the command; None while it runs. -SIGKILL if the unit has ended without an exit code."""
        if self._is_preparing:
            self.attach()
        is_running = self._is_preparing or (self._main is not None and not select.select([self._main], [], [], 0)[0])
        code = self._read_exit_code()  # after the check: it is written before the process ends
        return code if code is not None or is_running else -signal.SIGKILL

    def _read_exit_code(self) -> int | None:
        for folder in (self.prepared, self.files):
            with suppress(OSError, ValueError):
                return int(read_job_file(folder / job_process.EXIT_FILE, limit=16))
        return None

    def output(self, limit: int = 1 << 20) -> str:
        """End of the output of the preparation and the command, `limit` bytes of each at most."""
        text = ""
        for folder in (self.prepared, self.files):
            with suppress(OSError):
                text += read_job_file(folder / job_process.LOG, limit).decode(errors="replace")
        return text

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


def _inherited_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNIT_VARIABLES}


def stop_attempts() -> None:
    """Stop the units of all attempts that run on this node."""
    _run("systemctl", "stop", f"{PREFIX}*.service")


def kill_health_checks() -> None:
    """End all processes of the health checks that run on this node with SIGKILL."""
    units = f"{HEALTH_CHECK_PREFIX}*.service"
    with suppress(OSError):  # none runs
        _run("systemctl", "kill", "--signal=SIGKILL", units)
    _run("systemctl", "stop", units)


def _run(*command: str) -> str:
    """Output of a program of systemd. Raises OSError with its message if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"{command[0]}: {result.stderr.strip()}")
    return result.stdout
