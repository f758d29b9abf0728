"""`trainyard blocks`."""

import json
import time
from typing import Annotated

import typer

from trainyard.cli.options import FileOption, JsonOption, StackOption, current_project
from trainyard.operations import blocks as operation
from trainyard.operations.cluster import Cluster
from trainyard.operations.stack_file import read_stack_settings


def blocks(
    context: typer.Context,
    stack: StackOption,
    hours: Annotated[
        int | None,
        typer.Option(
            "--hours",
            help="Duration, hours. Default: the shortest that AWS sells for time limit, startup and the last minutes "
            f"that a run cannot use; with --extend: {operation.EXTENSION_HOURS}.",
        ),
    ] = None,
    after_days: Annotated[float, typer.Option("--after-days", min=0, help="Days until the earliest start.")] = 0,
    buy: Annotated[
        str | None, typer.Option("--buy", metavar="OFFERING", help="Buy this offering, after a confirmation.")
    ] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="List extensions of the stack's Capacity Block, or buy one with --buy.")
    ] = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the Capacity Blocks that AWS offers for all nodes of a stack, with start and price; buy or extend one."""
    project = current_project(context)
    settings = read_stack_settings(stack, project, file)
    cluster = Cluster.from_environment(stack, project=project)
    region = cluster.region
    if extend:
        duration = operation.EXTENSION_HOURS if hours is None else hours
        offerings = operation.list_extensions(region, settings, duration)
    else:
        duration = operation.block_hours(settings) if hours is None else hours
        offerings = operation.list_offerings(region, settings, duration, time.time() + after_days * 86400)
    if buy is None:
        command = operation.list_command(stack, duration, after_days=after_days, extend=extend, file=file)
        lines = operation.format_offerings(offerings, command)
        print(json.dumps([offering.model_dump() for offering in offerings]) if as_json else "\n".join(lines))
        return
    purchase = operation.buy_offering(region, cluster.stack_tag, offerings, buy, _confirm)
    print(purchase.model_dump_json() if as_json else operation.format_purchase(purchase, stack))


def _confirm(question: str) -> None:
    typer.confirm(question, abort=True, err=True)
