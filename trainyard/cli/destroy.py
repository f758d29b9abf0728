"""`trainyard destroy`."""

from typing import Annotated

import typer

from trainyard.cli.options import CwdOption, JsonOption, StackOption, current_project
from trainyard.operations import destroy as operation
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import PlainDisplay
from trainyard.operations.stack_project import stack_project


def destroy(
    context: typer.Context,
    stack: StackOption,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Destroy without confirmation.")] = False,
    cwd: CwdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the stack's run, run `pulumi destroy`, and list what remains. The data bucket and its key are retained.

    Exit status 1 if anything else remains. The command can be repeated.
    """
    project = current_project(context)
    pulumi_project = stack_project(stack, project, cwd)
    cluster = Cluster.from_environment(stack, project=project)
    if not yes:
        typer.confirm(f"Destroy stack {stack} in {cluster.region}?", abort=True, err=True)
    # Pulumi writes to the same terminal, so rows cannot be overwritten.
    result = operation.destroy(cluster, PlainDisplay(), pulumi_project)
    print(result.model_dump_json() if as_json else "\n".join(operation.format_result(result)))
    if not result.complete:
        raise typer.Exit(1)
