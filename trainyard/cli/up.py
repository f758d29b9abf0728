"""`trainyard up`."""

from typing import Annotated

import typer

from trainyard.cli.options import CwdOption, JsonOption, StackOption, current_project
from trainyard.operations import up as operation
from trainyard.operations.stack_project import stack_project


def up(
    context: typer.Context,
    stack: StackOption,
    preview: Annotated[bool, typer.Option("--preview", help="Show the changes only.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Change without confirmation.")] = False,
    cwd: CwdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run `pulumi up` for the stack file. In the shell of a kept rehearsal it changes the rehearsed cluster.

    Exit status 1 if Pulumi failed.
    """
    project = current_project(context)
    if cwd is None:
        project.require_program()
    result = operation.up(stack, project, stack_project(stack, project, cwd), preview=preview, confirmed=yes)
    if as_json:
        print(result.model_dump_json())
    if result.pulumi_exit_status:
        raise typer.Exit(1)
