"""`trainyard launch`."""

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from trainyard.cli.options import ManifestOption, ResumeReplacedOption, StackOption, WaitOption, current_project
from trainyard.operations.archive import tag_old_objects
from trainyard.operations.cluster import Cluster
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.progress import create_display
from trainyard.operations.signals import terminate_with_launcher


def launch(
    context: typer.Context,
    stack: StackOption,
    manifest: ManifestOption = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Do not launch again if the last run has ended and matches the manifest.",
        ),
    ] = False,
    replace_running: Annotated[
        bool,
        typer.Option("--replace-running", help="Stop an active run if its job, node software or network differs."),
    ] = False,
    resume_replaced: ResumeReplacedOption = True,
    wait: WaitOption = None,
    trigger: Annotated[
        str | None, typer.Option("--trigger", help="Trigger of the Pulumi resource, for the run's record.")
    ] = None,
    again: Annotated[str | None, typer.Option("--again", help="Value of launch.again, for the run's record.")] = None,
    sha256: Annotated[str | None, typer.Option("--sha256", help="SHA-256 that the manifest must have.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Has no effect: the result is always one JSON object on stdout.")
    ] = False,
) -> None:
    """Start the stack's job on all nodes or none, or add nodes to its current run.

    Returns when the job has started, with --no-wait when the nodes are launched, or when the run is scheduled for the
    start of a Capacity Block. The last line on stdout is a JSON object.
    """
    terminate_with_launcher()
    with create_display() as display:
        cluster = Cluster.from_environment(stack, manifest, sha256, project=current_project(context))
        options = LaunchOptions(
            trigger=trigger,
            again=again,
            replace_running=replace_running,
            resume_replaced=resume_replaced,
            wait=waits_for_start(wait, os.environ),
        )
        result = Launch(cluster, display, options).start(update)
        tag_old_objects(cluster, display)
        print(result.model_dump_json())


def waits_for_start(option: bool | None, environment: Mapping[str, str]) -> bool:
    """Return whether the launch waits for the start of the job: the option, else whether this is no CI system."""
    if option is not None:
        return option
    return environment.get("CI", "").lower() in ("", "0", "false")
