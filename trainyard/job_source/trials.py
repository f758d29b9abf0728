"""Try a custom job on this machine before a node is launched: the imports of its script, or its own dry run."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.errors import Problem
from trainyard.job_source import import_trial
from trainyard.job_source.resolution import UV, run_tool

IMPORT_SECONDS = 60.0
DRY_RUN_SECONDS = 300.0
_OUTPUT_LINES = 15
# Errors of imports that do not depend on the machine: another error may be one of this machine only.
_CERTAIN = ("ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", "NameError")


@contextmanager
def installed_wheels(interpreter: Path, wheels: Sequence[Path]) -> Iterator[str]:
    """Yield a folder with wheels installed for this Python, for PYTHONPATH; empty without wheels. Raises ToolError."""
    if not wheels:
        yield ""
        return
    with TemporaryDirectory() as folder:
        command = [*UV, "pip", "install", "-q", "--no-index", "--no-deps", "--python", str(interpreter)]
        run_tool([*command, "--target", folder, *map(str, wheels)], Path(folder))
        yield folder


def try_imports(
    interpreter: Path, source: Path, script: str, variables: Mapping[str, str]
) -> tuple[Problem | None, str | None]:
    """Run the imports of the script; the problem that they have, and a warning about an error that nodes may not have.

    `source`: the unpacked source. `variables`: environment variables in addition to those of this process.
    """
    command = [str(interpreter), import_trial.__file__, script]
    try:
        result = _run(command, source, variables, IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"the imports of {script} took more than {IMPORT_SECONDS:g} seconds here and were stopped"
    try:
        error = json.loads(result.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        return None, f"the imports of {script} ended this Python with exit code {result.returncode}"
    if not error:
        return None, None
    message = f"{error['type']}: {error['message']}"
    place = f"{error['file']}:{error['line']}"
    is_certain = error["type"] in _CERTAIN or error["message"].startswith("cannot import name")
    if not is_certain:
        return None, f"{place}: {message} (on this machine; nodes may differ)"
    fix = "Correct it: each node would fail with this error"
    return Problem(place, error["text"] or None, message.rstrip("."), fix, "import_failed"), None


def try_dry_run(
    interpreter: Path, source: Path, command: Sequence[str], variables: Mapping[str, str]
) -> Problem | None:
    """Run the command (job.dry_run) as a job of one process; the problem if it fails."""
    value = " ".join(command)
    fix = "Correct the job, or job.dry_run"
    try:
        result = _run([str(interpreter), *command], source, variables, DRY_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        reason = f"did not end within {DRY_RUN_SECONDS:g} seconds"
        return Problem("job.dry_run", value, reason, fix, "dry_run_failed")
    if result.returncode == 0:
        return None
    last = "\n".join(result.stderr.rstrip().splitlines()[-_OUTPUT_LINES:])
    return Problem("job.dry_run", value, f"ended with exit code {result.returncode}:\n{last}\n", fix, "dry_run_failed")


def _run(
    command: Sequence[str], source: Path, variables: Mapping[str, str], timeout_seconds: float
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **variables, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command,
        cwd=source,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_seconds,
        check=False,
    )
