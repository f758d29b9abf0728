"""The Pulumi CLI: where it is, whether its backend has a stack, and a run that a signal ends in order."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.config.project import Project
from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.operations.signals import waiting_for_child

_NO_STACK = "no stack named"  # pulumi/pulumi, pkg/cmd/pulumi/stack/io.go, RequireStack
_NO_LOGIN = "PULUMI_ACCESS_TOKEN must be set for login"  # pulumi/pulumi issue 13293


def require_pulumi() -> str:
    """Return the path of the Pulumi CLI. Raises InputError when it is not on PATH."""
    path = shutil.which("pulumi")
    if path is None:
        reason = "the Pulumi CLI is not on PATH"
        fix = "Install it (https://www.pulumi.com/docs/install/), or add its folder to PATH"
        raise InputError([Problem("PATH", None, reason, fix, "pulumi_missing")])
    return path


def cli_environment() -> dict[str, str]:
    """Return the environment of the CLI: the Python environment of this process is active, as the program needs it."""
    if sys.prefix == sys.base_prefix:
        return dict(os.environ)
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "VIRTUAL_ENV": sys.prefix, "PATH": path}


@dataclass(frozen=True)
class PulumiProject:
    """The Pulumi project in `folder`. `variables`: of the CLI's environment, in addition to `cli_environment`."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def has_stack(self, stack: str) -> bool:
        """Return whether the Pulumi backend has the stack of the project; True where Pulumi fails otherwise.

        Raises InputError without the CLI, for a folder without a project, and without a login.
        """
        pulumi = require_pulumi()
        above = self.folder.resolve()
        if not self.folder.is_dir() or not any((each / "Pulumi.yaml").is_file() for each in (above, *above.parents)):
            reason = "the folder has no Pulumi.yaml"
            fix = "Run the command in the repository of the stack, or name its folder: trainyard -C DIR"
            raise InputError([Problem("Pulumi project", str(self.folder), reason, fix, "project_missing")])
        completed = self.query(
            pulumi, "stack", "--stack", stack, "--show-name", "--non-interactive", "--color", "never"
        )
        if completed.returncode and _NO_LOGIN in completed.stderr:
            reason = "the Pulumi CLI is not logged in to a backend"
            fix = "Run pulumi login with the backend of the stack, or set PULUMI_BACKEND_URL or PULUMI_ACCESS_TOKEN"
            raise InputError([Problem("pulumi login", None, reason, fix, "login_missing")])
        return not completed.returncode or _NO_STACK not in completed.stderr

    def query(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the CLI that changes nothing, and return its output."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**cli_environment(), **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *arguments: str, interactive: bool = False) -> int:
        """Run the CLI and return its exit status. Its output goes to stderr.

        Ctrl-C in a terminal reaches the CLI, which then ends its operations in progress; SIGTERM has the same effect.
        """
        process = subprocess.Popen(
            [require_pulumi(), *arguments],
            cwd=self.folder,
            env={**cli_environment(), **self.variables},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        with waiting_for_child(process):
            return process.wait()


def stack_missing(stack: str, project: Project | None) -> Problem:
    """Return the problem of a stack that the Pulumi backend does not have."""
    names = set(project.stack_names if project else ()) - {stack}
    fix = "Use a stack that pulumi stack ls lists, or log in to the backend of the stack with pulumi login"
    reason = "the Pulumi backend has no such stack"
    return Problem("--stack", stack, reason, did_you_mean(stack, names) + fix, "backend_stack_missing")
