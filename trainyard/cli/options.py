"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.config.project import Project

StackOption = Annotated[str, typer.Option("--stack", "-s", help="Pulumi stack, e.g. a100-cluster.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", help="The stack's file. Default: Pulumi.STACK.yaml of the project.")
]
RunOption = Annotated[str | None, typer.Option("--run", help="Run id. Default: the newest run.")]
ManifestOption = Annotated[
    str | None, typer.Option("--manifest", help="S3 URI of the stack's manifest. Default: found by the stack's tags.")
]
CwdOption = Annotated[
    Path | None,
    typer.Option(
        "--cwd",
        help="Folder of another Pulumi.yaml, for Pulumi only. To select a project for the whole command, use trainyard "
        "-C DIR.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
ResumeReplacedOption = Annotated[
    bool,
    typer.Option(
        "--resume-replaced/--no-resume-replaced",
        help="Start from the newest checkpoint of the run that is replaced, unless job.resume is set.",
    ),
]
WaitOption = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Wait until the job has started. Default: only if the environment variable CI is not set.",
    ),
]


def current_project(context: typer.Context) -> Project:
    """Return the project that the command works on: that of -C, else of the working directory."""
    project = context.obj
    assert isinstance(project, Project), "the callback of the command `trainyard` sets it"
    return project
