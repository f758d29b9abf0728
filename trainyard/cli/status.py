"""`trainyard status`."""

from typing import Annotated

import typer

from trainyard.cli.options import JsonOption, RunOption, StackOption, current_project
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import create_display
from trainyard.operations.runs import read_run_record
from trainyard.operations.startup import follow_startup
from trainyard.operations.status import format_status, read_status
from trainyard.terminal import escape_control_characters


def status(
    context: typer.Context,
    stack: StackOption,
    run: RunOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="First follow the startup of the nodes until the job has started.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the status of a run: progress or outcome, deadlines, nodes and last health check.

    With --wait it fails if the run fails before its job has started.
    """
    cluster = Cluster.from_environment(stack, project=current_project(context))
    if wait:
        with create_display() as display:
            follow_startup(cluster, display, read_run_record(cluster, run))
    result = read_status(cluster, run)
    print(result.model_dump_json() if as_json else escape_control_characters("\n".join(format_status(result, stack))))
