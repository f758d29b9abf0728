"""`trainyard run`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.launch import waits_for_start
from trainyard.cli.options import (
    FileOption,
    JsonOption,
    ResumeReplacedOption,
    StackOption,
    WaitOption,
    current_project,
)
from trainyard.operations import job_run as operation
from trainyard.operations.archive import tag_old_objects
from trainyard.operations.cluster import Cluster
from trainyard.operations.launch import LaunchOptions
from trainyard.operations.progress import create_display
from trainyard.operations.status import describe_next_commands


def run(
    context: typer.Context,
    stack: StackOption,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGUMENTS]",
            help="Arguments of the script instead of those in job.command; KEY=VALUE settings of the built-in trainer.",
        ),
    ] = None,
    job_file: Annotated[
        Path | None,
        typer.Option(
            "--job-file",
            metavar="FILE",
            help="YAML file with keys of `job`; they replace those of the stack file.",
        ),
    ] = None,
    file: FileOption = None,
    replace_running: Annotated[
        bool, typer.Option("--replace-running", help="Stop an active run; the new run uses its nodes.")
    ] = False,
    resume_replaced: ResumeReplacedOption = True,
    wait: WaitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a new run of the job as the stack file defines it now.

    The run uses kept nodes (job.keep_nodes_minutes) and launches the nodes that are missing, all or none. Other changes
    of the stack file need `trainyard up`.
    """
    options = operation.JobOptions(file=job_file, arguments=tuple(arguments or ()), stack_file=file)
    project = current_project(context)
    with create_display() as display:
        cluster = Cluster.from_environment(stack, project=project)
        launch_options = LaunchOptions(
            replace_running=replace_running,
            resume_replaced=resume_replaced,
            wait=waits_for_start(wait, os.environ),
            new_run=True,
            deployed_digest=cluster.manifest.digest(),
        )
        result = operation.run_job(cluster, project, options, launch_options, display)
        tag_old_objects(cluster, display)
        print(result.model_dump_json() if as_json else "\n".join(describe_next_commands(result, stack)))
