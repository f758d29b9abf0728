"""`trainyard rehearse`."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import typer

from trainyard.cli.options import current_project
from trainyard.config.project import PROJECT_ROOT
from trainyard.errors import InputError, Problem

PACKAGES = ("moto", "torch", "ansible_runner")  # of each part of trainyard[rehearsal]
_FOLDER_OPTIONS = ("--data", "--model", "--project")


def rehearse(context: typer.Context) -> None:
    """Rehearse a stack offline in an emulated AWS; `trainyard rehearse --help` lists the options."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        reason = f"the Python environment {sys.prefix} has no {', '.join(missing)}"
        fix = "Install trainyard[rehearsal] instead of trainyard, or run make setup in a clone of Trainyard"
        raise InputError([Problem("rehearse", None, reason, fix, "rehearsal_not_installed")])
    project = current_project(context).folder
    # The rehearsal replaces this process, so that signals reach it directly.
    arguments = absolute_folders(context.args)
    os.chdir(PROJECT_ROOT)
    os.environ["TRAINYARD_PROGRAM"] = "trainyard rehearse"  # in its help and errors
    command = [sys.executable, "-m", "rehearsal", "run", "--project", str(project), *arguments]
    os.execv(sys.executable, command)  # noqa: S606


def absolute_folders(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with absolute paths of folders: the rehearsal runs in another folder."""
    result: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option in _FOLDER_OPTIONS and equals:
            result.append(f"{option}={Path(value).absolute()}")
        elif result and result[-1] in _FOLDER_OPTIONS:
            result.append(str(Path(argument).absolute()))
        else:
            result.append(argument)
    return result
