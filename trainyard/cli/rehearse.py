"""`trainyard rehearse`."""

import os
import sys

import typer

from trainyard.errors import InputError, Problem
from trainyard.operations.stack_file import PROJECT_ROOT


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
    os.chdir(PROJECT_ROOT)
    os.environ["TRAINYARD_PROGRAM"] = "trainyard rehearse"  # in its help and errors
    os.execv(sys.executable, [sys.executable, "-m", "rehearsal", "run", *context.args])  # noqa: S606
