"""A folder in which `trainyard selftest` runs Pulumi: a separate project file, stack file, state and passphrase.

The user's stacks and the repository's `stacks/` are not touched.
"""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainyard.operations.destroy import require_pulumi
from trainyard.operations.progress import Display
from trainyard.operations.signals import ignore_signals
from trainyard.operations.stack_file import PROJECT_ROOT

POLL_SECONDS = 0.5
# Pulumi ends its operations in progress after SIGINT: AWS calls that wait for a resource may take minutes.
INTERRUPT_TIMEOUT_SECONDS = 300.0
MAX_ERROR_LINES, MAX_PROGRESS_LINES = 60, 200
# Lines of `trainyard launch` in Pulumi's output: seconds, subject, text (PlainDisplay).
_PROGRESS = re.compile(r"\d+\.\d s  \S.*")
_ERROR = re.compile(r"^\s*(error|trainyard): |\[diff: |^remaining: ")


class StepError(RuntimeError):
    """A step failed. `lines`: error lines for the report; `progress`: progress lines of the launch."""

    def __init__(self, lines: Sequence[str], progress: Sequence[str] = ()) -> None:
        super().__init__("\n".join(lines))
        self.lines, self.progress = tuple(lines), tuple(progress)


class SelftestProject:
    """The Pulumi project of one stack, whose name is that of the folder."""

    def __init__(self, folder: Path, region: str) -> None:
        self.folder, self.region, self.stack = folder.absolute(), region, folder.name
        self._stack_file = self.folder / f"Pulumi.{self.stack}.yaml"

    @classmethod
    def load(cls, folder: Path) -> "SelftestProject":
        """Return the project of an existing folder."""
        content = yaml.safe_load((folder / f"Pulumi.{folder.name}.yaml").read_text())
        return cls(folder, content["config"]["aws:region"])

    def create(self) -> None:
        """Create the folder with project file, passphrase and empty state."""
        (self.folder / "state").mkdir(parents=True)
        passphrase = self.folder / "passphrase"
        passphrase.touch(mode=0o600)
        passphrase.write_text(secrets.token_urlsafe(32))
        project = yaml.safe_load((PROJECT_ROOT / "Pulumi.yaml").read_text())
        del project["stackConfigDir"]
        project["main"] = str(PROJECT_ROOT / project["main"])
        project["runtime"]["options"]["virtualenv"] = sys.prefix
        (self.folder / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        self.write_settings({})  # the folder can be destroyed from here on
        self.query("stack", "init", self.stack, "--no-select")

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings of the stack. Other content of its file, from Pulumi, stays."""
        content = yaml.safe_load(self._stack_file.read_text()) if self._stack_file.exists() else {}
        config = {"aws:region": self.region, **settings}
        self._stack_file.write_text(yaml.safe_dump({**content, "config": config}))

    def delete(self) -> None:
        """Delete the folder, and with it the state."""
        shutil.rmtree(self.folder)

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        outputs: dict[str, Any] = json.loads(self.query("stack", "output", "--json", "--stack", self.stack))
        return outputs

    def unlock(self) -> None:
        """Remove the lock on the state that a killed Pulumi process left."""
        self.query("cancel", "--yes", self.stack)

    def query(self, *arguments: str) -> str:
        """Return the stdout of a short Pulumi command. Raises StepError."""
        completed = subprocess.run(
            [require_pulumi(), *arguments, "--cwd", str(self.folder), "--non-interactive", "--color", "never"],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            raise StepError([f"pulumi {arguments[0]} failed:", *completed.stderr.strip().splitlines()])
        return completed.stdout

    def environment(self) -> dict[str, str]:
        """Return the environment of Pulumi and `trainyard`, with this folder's state."""
        inherited = {key: value for key, value in os.environ.items() if key != "PULUMI_CONFIG_PASSPHRASE"}
        return inherited | {
            "AWS_REGION": self.region,
            "PULUMI_BACKEND_URL": (self.folder / "state").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(self.folder / "passphrase"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }

    def pulumi(self, *arguments: str) -> list[str]:
        """Return the command line of Pulumi for this stack."""
        options = ["--cwd", str(self.folder), "--non-interactive", "--color", "never"]
        return [require_pulumi(), *arguments, "--stack", self.stack, *options]

    def run(self, argv: Sequence[str], minutes: float, display: Display) -> str:
        """Run a command until it exits, display its output lines, and return its output.

        Raises StepError when it fails or after `minutes`. After KeyboardInterrupt and the time limit the command is
        interrupted, then killed.
        """
        log = self.folder / f"{time.time():.3f}.log"
        with log.open("wb") as output:
            # In its own session, so that Ctrl-C reaches only this process, which then interrupts the command. A file
            # instead of a pipe: a launch that outlives Pulumi would keep a pipe open.
            process = subprocess.Popen(
                argv,
                cwd=PROJECT_ROOT,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + minutes * 60
        try:
            with log.open(encoding="utf-8", errors="replace") as file:
                text = ""
                while not _has_exited(process, POLL_SECONDS):
                    text = _display_lines(text + file.read(), display)
                    if time.monotonic() > deadline:
                        _interrupt(process)
                        raise _failure(log, f"the time limit of the step, {minutes:g} minutes, has passed")
                _display_lines(text + file.read() + "\n", display)
        except KeyboardInterrupt:
            _interrupt(process)
            raise
        if process.returncode:
            raise _failure(log, f"exit status {process.returncode}")
        return log.read_text(encoding="utf-8", errors="replace")


def _has_exited(process: "subprocess.Popen[bytes]", timeout_seconds: float) -> bool:
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT, and kill the command with the programs of its process group when it does not exit."""
    with ignore_signals():
        process.send_signal(signal.SIGINT)
        if not _has_exited(process, INTERRUPT_TIMEOUT_SECONDS):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _display_lines(text: str, display: Display) -> str:
    """Display the complete lines of a text; return the incomplete last line."""
    *lines, last = text.split("\n")
    for line in lines:
        if line.strip() and not line.startswith("@"):  # Pulumi's sign of life
            display.line("output", line.rstrip())
    return last


def _failure(log: Path, reason: str) -> StepError:
    output = log.read_text(encoding="utf-8", errors="replace")
    return StepError([reason, *error_lines(output)], progress_lines(output))


def error_lines(output: str) -> list[str]:
    """Return Pulumi's diagnostics, the errors and the unexpected changes in an output; else its last lines."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    matches, in_diagnostics = [], False
    for line in lines:
        in_diagnostics = line == "Diagnostics:" or (in_diagnostics and line.startswith(" "))
        if (in_diagnostics and " warning: " not in line) or _ERROR.search(line):
            matches.append(line)
    return list(dict.fromkeys(matches or lines))[-MAX_ERROR_LINES:]


def progress_lines(output: str) -> list[str]:
    """Return the progress lines of the launch in Pulumi's output, which contains each twice."""
    matches = (match[0] for match in map(_PROGRESS.search, output.splitlines()) if match)
    return list(dict.fromkeys(line.rstrip() for line in matches))[-MAX_PROGRESS_LINES:]
