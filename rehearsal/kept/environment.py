"""The files of a kept rehearsal for the user's shell: environment variables and programs."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rehearsal.private_files import write_private_file
from trainyard.models.kept_rehearsal import DESCRIPTION, ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "bin"  # folder in the rehearsal's folder, first in PATH
_PLUGIN = "session-manager-plugin"


def write_environment(folder: Path, stack: str, variables: Mapping[str, str]) -> Path:
    """Write the file that a shell sources. Returns its path.

    It removes the user's own AWS variables, of which AWS_PROFILE would select an account on AWS, and marks the prompt.
    """
    prompt = shlex.quote(f"(rehearsal {stack}) ")
    lines = [
        f"# The emulated AWS of the kept rehearsal of stack {stack}. Source it in a separate shell, and close that",
        f"# shell to leave. trainyard rehearse --down -s {stack} ends the rehearsal.",
        r"unset AWS_PROFILE $(env | sed -n 's/^\(AWS_[A-Za-z0-9_]*\)=.*/\1/p')",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        f'export PATH={shlex.quote(str(folder / PROGRAMS))}:"$PATH"',
        f'[ -z "${{PS1-}}" ] || PS1={prompt}"$PS1"',
    ]
    file = folder / ENVIRONMENT
    write_private_file(file, "\n".join(lines) + "\n")
    return file


def remove_files(folder: Path) -> None:
    """Remove what the user's shell could still use after the end of the rehearsal."""
    for name in (DESCRIPTION, ENVIRONMENT):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PROGRAMS, ignore_errors=True)


def write_programs(folder: Path) -> None:
    """Write the programs for the shell: `trainyard` of this repository, and a replacement of AWS's session plugin."""
    _write_program(folder / PROGRAMS / "trainyard", "trainyard")
    _write_program(folder / PROGRAMS / _PLUGIN, "rehearsal.kept.session_plugin", str(folder))


def _write_program(file: Path, module: str, *arguments: str) -> None:
    file.parent.mkdir(exist_ok=True)
    command = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", module, *arguments])
    file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    file.chmod(0o755)
