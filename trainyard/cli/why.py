"""`trainyard why`."""

from typing import Annotated

import typer

from trainyard.cli.options import JsonOption, StackOption, current_project
from trainyard.operations.cluster import Cluster
from trainyard.operations.why import explain_run, format_explanation
from trainyard.terminal import escape_control_characters


def why(
    context: typer.Context,
    stack: StackOption,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Run id; default: the newest run.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print why attempts of a run failed: the evidence, and the decisions of the controller."""
    result = explain_run(Cluster.from_environment(stack, project=current_project(context)), run)
    print(result.model_dump_json() if as_json else escape_control_characters("\n".join(format_explanation(result))))
