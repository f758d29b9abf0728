"""Command line of the rehearsal. Exit status of `run`: 0 no errors, 1 errors, 2 invalid input, 130 interrupted."""

# ruff: noqa: E402 (the signal handlers must be set before the other imports, which take seconds)
from rehearsal.interrupts import INTERRUPTED_STATUS, Interrupts

interrupts = Interrupts()

import os
import shutil
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rehearsal.aws.process import EmulatedAws
from rehearsal.display import Display
from rehearsal.engine.registry import ENGINES, select_engine
from rehearsal.faults import FAULT_SYNTAX, parse_faults
from rehearsal.hypervisor.registry import BACKENDS, select_backend
from rehearsal.locks import address_block
from rehearsal.profiles import select_profile
from rehearsal.report import print_report, write_report
from rehearsal.report_page import write_page
from rehearsal.run import rehearse
from rehearsal.timeline import Timeline
from rehearsal.workspace import (
    ROOT,
    Options,
    account_folder,
    check_bake,
    check_region,
    parse_changes,
    parse_nodes,
    remove_stale_accounts,
)
from trainyard.errors import InputError
from trainyard.models.report import Report

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)


@app.callback()
def root() -> None:
    """Rehearse a stack offline: in an emulated AWS, with nodes on this machine that run the real job."""


@app.command()
def run(
    stack: Annotated[str, typer.Option("--stack", "-s", help="Stack file stacks/Pulumi.<stack>.yaml.")] = "local",
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="NUMBER", help="Number of worker nodes; default: the stack's.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="FAULT", help=f"Fault to inject: {'; '.join(FAULT_SYNTAX)}. Repeatable."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help=f"Runs the Pulumi program: {', '.join(ENGINES)}.")
    ] = "mocks",
    backend: Annotated[
        str, typer.Option("--backend", metavar="BACKEND", help=f"Runs the nodes: {', '.join(BACKENDS)}.")
    ] = "process",
    bake: Annotated[bool, typer.Option("--bake", help="Also bake an image of a worker before destroy.")] = False,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting to change, e.g. capacity.reserve=false. Repeatable."),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            help="How long AWS takes: realistic (its minutes are seconds) or instant.",
        ),
    ] = "realistic",
    preview: Annotated[
        bool, typer.Option("--preview", help="Validate the stack file and run the preview only: create no resource.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report to stdout as JSON.")] = False,
) -> None:
    """Rehearse one stack: deploy it, train, download the results, destroy it and audit the account."""
    try:
        options = Options(
            stack=stack,
            nodes=parse_nodes(nodes),
            faults=parse_faults(fault or []),
            engine=select_engine(engine),
            backend=(selected := select_backend(backend)),
            bake=check_bake(bake, selected),
            profile=select_profile(profile),
            changes=parse_changes(change or []),
            preview_only=preview,
        )
        with Display() as display:
            report, timeline = rehearse(options, display, interrupts)
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    _write(report, timeline, options.folder, as_json)
    raise typer.Exit(0 if report.ok else INTERRUPTED_STATUS if interrupts.received else 1)


def _write(report: Report, timeline: Timeline, folder: Path, as_json: bool) -> None:
    """Write the report and its page into the folder, and print it. Exits with status 1 if they cannot be written."""
    try:
        file, page = write_report(report, folder), write_page(report, timeline, folder)
    except OSError as error:
        print(f"rehearsal: cannot write the report to {folder}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(report.model_dump_json())
    else:
        print_report(report, Console())
        print(f"report: {file}\npage:   {page}")


@app.command()
def aws(
    region: Annotated[str, typer.Option("--region", help="AWS region.")] = "us-east-1",
    backend: Annotated[str, typer.Option("--backend", help="Backend of the rehearsals that will use it.")] = "process",
) -> None:
    """Run an emulated AWS until Ctrl-C. It prints environment variables for rehearsals and `pulumi up` to share it."""
    try:
        check_region(region, "the command", "--region")
        uses_loopback = select_backend(backend) == "process"
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    remove_stale_accounts(ROOT / "build" / "rehearsal")
    folder = account_folder(ROOT / "build" / "rehearsal", os.getpid())
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with ExitStack() as stack:
        addresses = stack.enter_context(address_block()) if uses_loopback else None
        account = stack.enter_context(EmulatedAws.start(folder, addresses, region))
        for name, value in account.environment().items():
            print(f"export {name}={value}", flush=True)
        stopped.wait()
    shutil.rmtree(folder)


if __name__ == "__main__":
    app()
