"""The Pulumi project of `trainyard selftest`: a folder with project file, stack file, state and passphrase.

The user's stacks and the repository's `stacks/` are not touched.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from trainyard.config import CONFIG_KEY
from trainyard.config.project import PROJECT_ROOT, engine_project
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import Display
from trainyard.operations.pulumi_cli import require_pulumi
from trainyard.operations.signals import ignore_signals
from trainyard.quantity import quantity

POLL_SECONDS = 0.5
# Pulumi ends its operations in progress after SIGINT: AWS calls that wait for a resource may take minutes.
INTERRUPT_TIMEOUT_SECONDS = 300.0
MAX_ERROR_LINES, MAX_PROGRESS_LINES = 60, 200
# Lines of `trainyard` in Pulumi's output: seconds, subject, text (PlainDisplay).
_PROGRESS = re.compile(r"\d+\.\d s  \S.*")
_ERROR = re.compile(r"^\s*(error|trainyard): |\[diff: |^remaining: ")


class ActionError(RuntimeError):
    """An action failed. The message has one error per line."""


class SelftestProject:
    """The Pulumi project of one stack, whose name is that of the folder. `output`: of the last command."""

    def __init__(self, folder: Path, region: str) -> None:
        self.folder, self.region, self.stack, self.output = folder.absolute(), region, folder.name, ""
        self.cluster = Cluster(self.stack, region)
        self._stack_file = self.folder / f"Pulumi.{self.stack}.yaml"

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the project of an existing folder."""
        content = yaml.safe_load((folder / f"Pulumi.{folder.name}.yaml").read_text())
        return cls(folder, content["config"]["aws:region"])

    def create(self) -> None:
        """Create the folder with project file, passphrase and empty state. Raises ActionError."""
        (self.folder / "state").mkdir(parents=True)
        passphrase = self.folder / "passphrase"
        passphrase.touch(mode=0o600)
        passphrase.write_text(secrets.token_urlsafe(32))
        project = engine_project(PROJECT_ROOT / "infra", sys.prefix)
        (self.folder / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        self.write_settings({})  # the folder can be destroyed from here on
        self.query("stack", "init", self.stack, "--no-select")

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings of the stack. Other content of its file, from Pulumi, stays."""
        content = yaml.safe_load(self._stack_file.read_text()) if self._stack_file.exists() else {}
        config = {"aws:region": self.region, CONFIG_KEY: settings}
        self._stack_file.write_text(yaml.safe_dump({**content, "config": config}))

    def query(self, *arguments: str) -> str:
        """Return the stdout of a short Pulumi command. Raises ActionError."""
        completed = subprocess.run(
            [require_pulumi(), *arguments, "--cwd", str(self.folder), "--non-interactive", "--color", "never"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            raise ActionError(f"pulumi {arguments[0]} failed:\n{completed.stderr.strip()}")
        return completed.stdout

    def run_pulumi(self, minutes: float, display: Display, *arguments: str) -> None:
        """Run a Pulumi command on this stack. Raises ActionError like `run`."""
        options = ["--stack", self.stack, "--suppress-outputs", "--non-interactive", "--color", "never"]
        self.run([require_pulumi(), *arguments, "--cwd", str(self.folder), *options], minutes, display)

    def destroy(self, minutes: float, display: Display) -> None:
        """Run `trainyard destroy`. Raises ActionError like `run`, also when anything remains that is not retained."""
        self.query("cancel", "--yes", self.stack)  # removes the lock that a killed Pulumi process left
        command = [sys.executable, "-m", "trainyard", "destroy", "--stack", self.stack, "--yes"]
        self.run([*command, "--cwd", str(self.folder)], minutes, display)

    def run(self, argv: Sequence[str], minutes: float, display: Display) -> None:
        """Run a command until it exits, display its output lines, and store its output.

        Raises ActionError when it fails or after `minutes`. After KeyboardInterrupt and the time limit the command is
        interrupted, then killed.
        """
        log = self.folder / f"{time.time():.3f}.log"
        deadline = time.monotonic() + minutes * 60
        # A file instead of a pipe, which a launch that runs longer than Pulumi would keep open.
        with log.open("wb") as output, log.open(encoding="utf-8", errors="replace") as lines:
            process = subprocess.Popen(
                argv,
                cwd=PROJECT_ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches only this process, which then interrupts the command
            )
            try:
                has_exited = False
                while not has_exited and time.monotonic() < deadline:
                    has_exited = _wait(process, POLL_SECONDS)
                    for line in lines:
                        if line.strip() and not line.startswith("@"):  # Pulumi's output while nothing changes
                            display.line("output", line.rstrip())
            finally:
                _interrupt(process)
                self.output = log.read_text(encoding="utf-8", errors="replace")
        if process.returncode or not has_exited:
            limit = f"the time limit of the action, {quantity(minutes, 'minute')}, has passed"
            reason = f"exit status {process.returncode}" if has_exited else limit
            raise ActionError("\n".join([reason, *error_lines(self.output)]))

    def _environment(self) -> dict[str, str]:
        """Return the environment of Pulumi and `trainyard`, with this folder's state."""
        inherited = {key: value for key, value in os.environ.items() if key != "PULUMI_CONFIG_PASSPHRASE"}
        return inherited | {
            "AWS_REGION": self.region,
            "PULUMI_BACKEND_URL": (self.folder / "state").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(self.folder / "passphrase"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }


def _wait(process: "subprocess.Popen[bytes]", timeout_seconds: float) -> bool:
    """Wait for the process for at most `timeout_seconds`; return whether it has exited."""
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT if the command runs, and kill it with the programs of its process group when it does not exit."""
    with ignore_signals():
        process.send_signal(signal.SIGINT)
        if not _wait(process, INTERRUPT_TIMEOUT_SECONDS):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def error_lines(output: str) -> list[str]:
    """Return the diagnostics of Pulumi, errors and unexpected changes in an output; without any, its last lines."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    matches, in_diagnostics = [], False
    for line in lines:
        in_diagnostics = line == "Diagnostics:" or (in_diagnostics and line.startswith(" "))
        if (in_diagnostics and " warning: " not in line) or _ERROR.search(line):
            matches.append(line)
    return list(dict.fromkeys(matches or lines))[-MAX_ERROR_LINES:]


def progress_lines(output: str) -> list[str]:
    """Return the progress lines of `trainyard` in an output. Pulumi's contains each twice."""
    matches = (match[0] for match in map(_PROGRESS.search, output.splitlines()) if match)
    return list(dict.fromkeys(line.rstrip() for line in matches))[-MAX_PROGRESS_LINES:]
