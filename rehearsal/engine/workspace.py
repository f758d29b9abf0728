"""A folder in which the Pulumi CLI runs the program, with a project, settings, state and logs of the rehearsal."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from rehearsal.adapter.deployment import Event
from rehearsal.engine.log import EngineLog
from trainyard.config.project import PROJECT_FILE, Project, engine_project

_POLL_SECONDS = 0.1
_INTERRUPT_TIMEOUT_SECONDS = 120.0
_UNLOCK_TIMEOUT_SECONDS = 1800.0


class Workspace:
    """The CLI's working folder for one stack.

    `project`: whose program runs. `ports`: package -> port of the provider that replaces its plugin.
    """

    def __init__(self, folder: Path, project: Project, stack: str, ports: Mapping[str, int]) -> None:
        self.folder = folder
        self._project = project
        self._stack = stack
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None

    def create(self, config: Mapping[str, Any]) -> None:
        """Create the folder with the program's project, these stack settings and an empty state."""
        (self.folder / "state").mkdir(parents=True)
        document = engine_project(self._project.program, sys.prefix, self._project.name)
        (self.folder / PROJECT_FILE).write_text(yaml.safe_dump(document))
        self.run_command("stack", "init", "--no-select", self._stack)
        self.write_config(config)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the stack settings for the next `up`. Other content of the settings file, from the engine, stays."""
        file = self.folder / f"Pulumi.{self._stack}.yaml"
        content = yaml.safe_load(file.read_text()) if file.exists() else {}
        file.write_text(yaml.safe_dump({**content, "config": dict(config)}))

    def export_state(self) -> dict[str, Any]:
        """Return the stack's state, from `pulumi stack export`."""
        state: dict[str, Any] = json.loads(self.run_command("stack", "export", "--stack", self._stack))
        return state

    def run(self, command: str, *arguments: str, on_event: Callable[[Event], None] = lambda event: None) -> EngineLog:
        """Run a command of the engine, such as `up`, until it exits. After a KeyboardInterrupt, interrupt it and wait.

        The returned log contains all errors, and at least one when the exit status is not 0.
        """
        event_log, output_log = self.folder / f"{command}.jsonl", self.folder / f"{command}.log"
        event_log.unlink(missing_ok=True)
        log = EngineLog(event_log)
        argv = ["pulumi", command, *arguments, "--stack", self._stack, "--cwd", str(self.folder)]
        with output_log.open("wb") as output:
            # In a separate session, so that Ctrl-C reaches only the rehearsal, which then interrupts the CLI.
            process = subprocess.Popen(
                [*argv, "--non-interactive", "--color", "never", "--event-log", str(event_log)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._process = process
        try:
            while not _has_exited(process, _POLL_SECONDS):
                for event in log.events():
                    on_event(event)
        except KeyboardInterrupt:
            self._terminate(process)
            raise
        finally:
            self._process = None
        for event in log.events():
            on_event(event)
        if process.returncode and not log.errors:
            tail = output_log.read_text(errors="replace").strip()[-2000:]
            log.errors.append(("", f"pulumi {command} exited with status {process.returncode}: {tail}"))
        return log

    def wait_until_unlocked(self, log: Callable[[str], None]) -> None:
        """Wait until no other CLI process changes the stack, and remove the lock of one that was killed.

        `log` receives the id of the process. Raises TimeoutError.
        """
        deadline, reported = time.monotonic() + _UNLOCK_TIMEOUT_SECONDS, None
        while process := next(filter(psutil.pid_exists, self._lock_holders()), None):
            if time.monotonic() > deadline:
                raise TimeoutError(f"pulumi (process {process}) still changes the stack {self._stack}")
            if process != reported:
                log(f"waits until pulumi (process {process}) has ended")
                reported = process
            time.sleep(_POLL_SECONDS)
        if self._lock_holders():
            self.run_command("cancel", "--yes", self._stack)

    def _lock_holders(self) -> list[int]:
        """Return the ids of the processes in the lock files. Source: pkg/backend/diy/lock.go of pulumi/pulumi."""
        processes = []
        for file in (self.folder / "state" / ".pulumi" / "locks").glob(f"**/{self._stack}/*.json"):
            with suppress(FileNotFoundError):  # the lock was released meanwhile
                processes.append(int(json.loads(file.read_text())["pid"]))
        return processes

    def interrupt(self) -> None:
        """Interrupt the running command as Ctrl-C does, from any thread: operations in progress end, commands stop."""
        if (process := self._process) is not None:
            process.send_signal(signal.SIGINT)

    def _terminate(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(signal.SIGINT)
        if not _has_exited(process, _INTERRUPT_TIMEOUT_SECONDS):
            process.kill()
            process.wait()
            self.run_command("cancel", "--yes", self._stack)  # removes the lock on the state

    def _environment(self) -> dict[str, str]:
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith("PULUMI_") or key == "PULUMI_HOME"
        }
        return inherited | self.variables()

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the CLI that select this folder's state and the providers."""
        return {
            "PULUMI_BACKEND_URL": (self.folder / "state").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": "rehearsal",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DEBUG_COMMANDS": "true",  # enables --event-log
            "PULUMI_DEBUG_PROVIDERS": ",".join(f"{name}:{port}" for name, port in self._ports.items()),
        }

    def run_command(self, *arguments: str) -> str:
        """Run a CLI command and return its stdout. Raises RuntimeError with its message when it fails."""
        result = subprocess.run(
            ["pulumi", *arguments, "--cwd", str(self.folder), "--non-interactive"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"pulumi {arguments[0]} failed: {result.stderr.strip()}")
        return result.stdout


def _has_exited(process: "subprocess.Popen[bytes]", timeout_seconds: float) -> bool:
    """Wait for the process for at most `timeout_seconds`, and return whether it has exited."""
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
