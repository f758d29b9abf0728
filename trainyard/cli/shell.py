"""`trainyard shell`."""

import json
from typing import Annotated

import typer

from trainyard.cli.options import JsonOption, StackOption, current_project
from trainyard.errors import InputError, Problem
from trainyard.operations.cluster import Cluster
from trainyard.operations.sessions import Session, find_node, require_plugin


def shell(
    context: typer.Context,
    stack: StackOption,
    node: Annotated[
        str | None,
        typer.Argument(
            help="`head`, an instance id, or the number of a worker: 0 is the node with rank 0. Default: 0.",
        ),
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(help="After NODE and --: a command to run instead of a shell.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Open a shell on a node with SSM Session Manager, or run one command there and exit with its status.

    Needs AWS's session-manager-plugin.
    """
    if as_json and not command:
        fix = "Add a command: trainyard shell -s STACK NODE --json -- COMMAND"
        raise InputError([Problem("--json", None, "an interactive shell has no JSON output", fix, "command_missing")])
    require_plugin()
    cluster = Cluster.from_environment(stack, project=current_project(context))
    instance = find_node(cluster, node)
    session = Session(cluster.region, instance, command or ())
    if not command:
        session.open_shell()
    lines: list[str] = []
    exit_status = 0
    for item in session.run():
        if isinstance(item, int):
            exit_status = item
        elif as_json:
            lines.append(item)
        else:
            print(item, end="", flush=True)
    if as_json:
        print(json.dumps({"instance": instance, "exit_status": exit_status, "stdout": "".join(lines)}))
    raise typer.Exit(exit_status)
