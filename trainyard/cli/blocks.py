"""`trainyard blocks`."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.options import JsonOption, StackOption
from trainyard.config.settings import StackSettings
from trainyard.operations import block_extensions as extensions
from trainyard.operations import blocks as operation
from trainyard.operations.cluster import Cluster
from trainyard.operations.reserve import read_stack_settings


def blocks(
    stack: StackOption,
    hours: Annotated[
        int | None,
        typer.Option("--hours", min=24, help="Duration. Default: what the job's time limit needs, or a day."),
    ] = None,
    after_days: Annotated[float, typer.Option("--after-days", min=0, help="Days until the earliest start.")] = 0,
    buy: Annotated[
        str | None, typer.Option("--buy", metavar="OFFERING", help="Buy this offering, after a confirmation.")
    ] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="List extensions of the stack's Capacity Block, or buy one with --buy.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="The stack's file. Default: stacks/Pulumi.STACK.yaml.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the Capacity Blocks that AWS offers for all nodes of a stack, with start and price; buy or extend one."""
    settings, region = read_stack_settings(stack, file), Cluster.from_environment(stack).region
    if extend:
        print(_extend(region, settings, stack, hours or extensions.DEFAULT_HOURS, buy, as_json))
        return
    duration = hours or operation.block_hours(settings)
    offerings = operation.list_offerings(region, settings, duration, time.time() + after_days * 86400)
    if buy is None:
        lines = operation.format_offerings(offerings, stack, duration, after_days)
        print(json.dumps([offering.model_dump() for offering in offerings]) if as_json else "\n".join(lines))
        return
    block = operation.buy_offering(region, offerings, buy, _confirm)
    text = f"{block.reservation}: set it as capacity.capacity_block.id in the file of stack {stack}, then pulumi up"
    print(block.model_dump_json() if as_json else text)


def _confirm(question: str) -> None:
    typer.confirm(question, abort=True, err=True)


def _extend(region: str, settings: StackSettings, stack: str, hours: int, buy: str | None, as_json: bool) -> str:
    """Return the text or JSON of the extensions, or of the purchased one."""
    offerings = extensions.list_extensions(region, settings, hours)
    if buy is None:
        lines = [offering.model_dump() for offering in offerings]
        return json.dumps(lines) if as_json else "\n".join(extensions.format_extensions(offerings, stack, hours))
    purchased = extensions.buy_extension(region, offerings, buy, _confirm)
    return purchased.model_dump_json() if as_json else extensions.format_purchase(purchased, stack)
