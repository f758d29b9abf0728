"""Whether a command works on a kept rehearsal instead of AWS: only AWS_ENDPOINT_URL decides."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.config.project import PROJECT_ROOT, Project
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import RUN_STACK_FILE, KeptRehearsal, find_kept_rehearsal

INPUT_ERROR_STATUS = 2
_LOOPBACK = ("127.0.0.1", "localhost")
_CONNECT_TIMEOUT_SECONDS = 5.0


def current_kept_rehearsal(stack: str, project: Project) -> KeptRehearsal | None:
    """Return the kept rehearsal of the project's stack whose account AWS_ENDPOINT_URL selects; None on AWS.

    Raises InputError when the variable selects an emulated AWS that does not respond, or that of another stack.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is None:
        return None
    _check_endpoint(endpoint)
    folders = project.rehearsals.glob("*/")
    kept = next((each for each in map(find_kept_rehearsal, folders) if each and each.endpoint == endpoint), None)
    if kept is not None and kept.stack != stack:
        reason = f"this shell uses the emulated AWS of the kept rehearsal of stack {kept.stack}"
        fix = f"Use -s {kept.stack}, or another shell for {stack}"
        raise InputError([Problem("--stack", stack, reason, fix, "kept_for_another_stack")])
    return kept


def _check_endpoint(endpoint: str) -> None:
    address = urlsplit(endpoint)
    if address.hostname not in _LOOPBACK:
        return
    try:
        socket.create_connection((address.hostname, address.port or 80), _CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        reason = f"no emulated AWS responds there, the rehearsal has ended ({error})"
        fix = "Close this shell, or unset all variables that start with AWS_ and PULUMI_"
        raise InputError([Problem("AWS_ENDPOINT_URL", endpoint, reason, fix, "endpoint_unreachable")]) from None


def kept_pulumi_folder(kept: KeptRehearsal) -> Path:
    """Return the folder of the Pulumi project. Raises InputError for a rehearsal that runs without the Pulumi CLI."""
    if kept.pulumi_folder is None:
        reason = f"its rehearsal is kept with the engine {kept.engine}, and this command needs the Pulumi CLI"
        fix = f"End it with trainyard rehearse --down -s {kept.stack}, and add --engine pulumi to rehearse --keep"
        raise InputError([Problem("--stack", kept.stack, reason, fix, "kept_without_engine")])
    return Path(kept.pulumi_folder)


def update_stack_settings(kept: KeptRehearsal, project: Project) -> None:
    """Apply the current stack file, changed for a rehearsal, to the Pulumi project of the kept rehearsal.

    Raises InputError when it is invalid.
    """
    _run_rehearsal(kept, project, "--update-settings")


def write_stack_settings(
    kept: KeptRehearsal, project: Project, changes: Mapping[str, Any], job_file: Path | None
) -> Path:
    """Write the current stack file, changed for a rehearsal, to a file of the kept rehearsal, and return its path.

    `changes`: dotted keys of the stack file and their values in `job_file`, which are changed for a rehearsal as well.
    Raises InputError when a file is invalid.
    """
    file = project.rehearsal(kept.stack) / RUN_STACK_FILE
    settings = [part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    _run_rehearsal(kept, project, *settings, "--write-settings", str(file), job_file=job_file)
    return file


def _run_rehearsal(kept: KeptRehearsal, project: Project, *arguments: str, job_file: Path | None = None) -> None:
    command = [sys.executable, "-m", "rehearsal", "run", *kept.arguments, *arguments]
    completed = subprocess.run(command, cwd=PROJECT_ROOT, stderr=subprocess.PIPE, text=True, check=False)
    message = completed.stderr.rpartition("rehearsal: ")[2].strip()
    if completed.returncode == INPUT_ERROR_STATUS:
        file, fix = project.source(kept.stack), "Nothing was changed"
        if job_file is not None and " in --set" in message:
            file, message = job_file.name, message.replace(" in --set", f" in {job_file.name}")
        if "--model FOLDER" in message or "--data FOLDER" in message:
            fix = f"It is an option of trainyard rehearse --keep -s {kept.stack}: end this rehearsal with --down first"
        raise InputError([Problem(file, None, message.rstrip("."), fix, "stack_file_invalid")])
    if completed.returncode:
        raise RuntimeError(f"cannot read the stack file of {kept.stack} again: {message}")
