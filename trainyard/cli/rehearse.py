"""`trainyard rehearse`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from trainyard.errors import InputError, Problem
from trainyard.operations.stack_file import PROJECT_ROOT

_FOLDER_OPTIONS = ("--data", "--model")


def rehearse(context: typer.Context) -> None:
    """Rehearse a stack offline in an emulated AWS; `trainyard rehearse --help` lists the options."""
    if not (PROJECT_ROOT / "rehearsal" / "__main__.py").is_file():
        problem = Problem(
            "rehearse",
            str(PROJECT_ROOT),
            "this folder does not contain the package rehearsal",
            "Run the command from a checkout of the Trainyard repository",
            "rehearsal_not_installed",
        )
        raise InputError([problem])
    # The rehearsal replaces this process, so that signals reach it directly.
    arguments = absolute_folders(context.args)
    os.chdir(PROJECT_ROOT)
    os.environ["TRAINYARD_PROGRAM"] = "trainyard rehearse"  # in its help and errors
    os.execv(sys.executable, [sys.executable, "-m", "rehearsal", "run", *arguments])  # noqa: S606


def absolute_folders(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with absolute paths of folders: the rehearsal runs in the folder of the project."""
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
