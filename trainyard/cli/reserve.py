"""`trainyard reserve`."""

import json
from typing import Annotated

import typer

from trainyard.cli.options import FileOption, JsonOption, StackOption, current_project
from trainyard.operations import reserve as operation
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import create_display
from trainyard.operations.stack_file import read_stack_settings
from trainyard.quantity import quantity
from trainyard.times import format_time


def reserve(
    context: typer.Context,
    stack: StackOption,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            min=0.5,
            max=24,
            help="Hours from now until AWS ends the reservation; default 2. If the stack has a reservation that ends "
            "earlier, it is extended to this time.",
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the reservation, unless a run uses it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Reserve without confirmation.")] = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reserve the capacity of a stack's on-demand GPU nodes before `pulumi up`, in a zone that has all of it.

    The reservation is billed like running instances until the nodes of the run are terminated or the reservation is
    cancelled. Otherwise AWS ends it within an hour after --hours.
    """

    def confirm(question: str) -> None:
        if not yes:
            typer.confirm(question, abort=True, err=True)

    project = current_project(context)
    with create_display() as display:
        if cancel:
            cancelled = operation.cancel_held_capacity(Cluster.from_environment(stack, project=project), display)
            print(
                json.dumps({"cancelled": cancelled})
                if as_json
                else f"{quantity(len(cancelled), 'reservation')} cancelled"
            )
            return
        settings = read_stack_settings(stack, project, file)
        cluster = Cluster.from_environment(stack, project=project)
        held = operation.hold_capacity(cluster, settings, hours, display, confirm)
        end = f" until {format_time(held.end)}" if held.end else ""
        text = f"{held.reservation}: {held.instances} x {held.instance_type} in {held.zone}{end}"
        price = f"{held.usd_per_hour:,.2f} USD per hour, used or not"
        print(held.model_dump_json() if as_json else f"{text}, {price}; next: trainyard up -s {stack}")
