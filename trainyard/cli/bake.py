"""`trainyard bake`."""

from typing import Annotated

import typer

from trainyard.cli.options import FileOption, JsonOption, StackOption, current_project
from trainyard.operations import bake as operation
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import create_display


def bake(
    context: typer.Context,
    stack: StackOption,
    group: Annotated[
        str | None, typer.Option("--group", help="Worker group that boots the AMI. Default: the first group.")
    ] = None,
    instance_type: Annotated[
        str | None,
        typer.Option(
            "--instance-type",
            help="Instance type of the builder. Default: the group's. With another type, the image has no drivers for "
            "the group's hardware, and nodes install them.",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", min=1, help="Time limit in minutes; then the builder is terminated.")
    ] = 90,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an AMI for the workers from a builder instance, and set `image` in the stack file to it."""
    project = current_project(context)
    file = file or project.stack_file(stack)
    options = operation.BakeOptions(minutes=minutes, group=group, instance_type=instance_type, file=file)
    with create_display() as display:
        result = operation.bake(Cluster.from_environment(stack, project=project), options, display)
        print(result.model_dump_json() if as_json else "\n".join(operation.format_result(result, stack)))
