"""A kept rehearsal in a separate process, and commands in a shell that has sourced its environment."""

import json
import shlex
import subprocess
import sys
from typing import Any, ClassVar

import psutil

from rehearsal.hypervisor.processes import find_processes, is_alive
from tests.polling import eventually
from tests.rehearsal.conftest import clean_environment
from tests.rehearsal.running import RehearsalProcess

COMMAND_TIMEOUT_SECONDS = 400


class KeptRehearsalProcess(RehearsalProcess):
    """A rehearsal with the option --keep. `background`: the process that runs it, once it is kept."""

    options: ClassVar[tuple[str, ...]] = ("--keep",)
    background: psutil.Process | None = None

    def wait_until_kept(self) -> dict[str, Any]:
        """Wait until the foreground process has ended. Returns the description that it printed."""
        completed = self.wait_for_exit()
        assert completed.exit_status == 0, completed.stderr
        self.background = psutil.Process(completed.report["process"])
        self.family = {self.background, *self.background.children(recursive=True), *find_processes(self.folder)}
        return completed.report

    def in_shell(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Run a line of bash in the tree, in an environment that has been sourced."""
        return run_in_shell(f"source {shlex.quote(str(self.folder / 'environment'))} && {command}", self)

    def trainyard(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run trainyard of the tree without the environment of the rehearsal."""
        return run_in_shell(shlex.join([sys.executable, "-m", "trainyard", *arguments]), self)

    def close(self) -> None:
        """Kill the background process, too."""
        if self.background is not None and is_alive(self.background):
            self.background.kill()
            background = self.background
            eventually(lambda: not is_alive(background), "the end of the background process", 10)
        super().close()


def run_in_shell(command: str, rehearsal: RehearsalProcess) -> "subprocess.CompletedProcess[str]":
    """Run a line of bash in the tree of a rehearsal."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=rehearsal.tree,
        env=clean_environment() | {"TMPDIR": str(rehearsal.temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
    )


def output(completed: "subprocess.CompletedProcess[str]") -> Any:
    """Return the JSON that a command printed; the command must have succeeded."""
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)
