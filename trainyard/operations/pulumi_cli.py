"""The Pulumi CLI: where it is, and whether its backend has a stack."""

import shutil
import subprocess
from pathlib import Path

from trainyard.config.stack_config import stack_names
from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.operations.stack_file import PROJECT_ROOT

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


def backend_has_stack(stack: str, folder: Path) -> bool:
    """Return whether the Pulumi backend has the stack of the project in `folder`; True where Pulumi fails otherwise.

    Raises InputError without the CLI, for a folder without a project, and without a login.
    """
    pulumi = require_pulumi()
    above = folder.resolve()
    if not folder.is_dir() or not any((each / "Pulumi.yaml").is_file() for each in (above, *above.parents)):
        reason, fix = "the folder has no Pulumi.yaml", "Name the folder of the project, or omit --cwd"
        raise InputError([Problem("--cwd", str(folder), reason, fix, "project_missing")])
    completed = subprocess.run(
        [pulumi, "stack", "--stack", stack, "--show-name", "--non-interactive", "--color", "never"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode and _NO_LOGIN in completed.stderr:
        reason = "the Pulumi CLI is not logged in to a backend"
        fix = "Run pulumi login with the backend of the stack, or set PULUMI_BACKEND_URL or PULUMI_ACCESS_TOKEN"
        raise InputError([Problem("pulumi login", None, reason, fix, "login_missing")])
    return not completed.returncode or _NO_STACK not in completed.stderr


def stack_missing(stack: str) -> Problem:
    """Return the problem of a stack that the Pulumi backend does not have."""
    names = set(stack_names(PROJECT_ROOT / "stacks")) - {stack}
    fix = "Use a stack that pulumi stack ls lists, or log in to the backend of the stack with pulumi login"
    reason = "the Pulumi backend has no such stack"
    return Problem("--stack", stack, reason, did_you_mean(stack, names) + fix, "backend_stack_missing")
