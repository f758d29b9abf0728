"""`python -m rehearsal run`: the whole road, offline. Exit status: 0 all was well, 1 it was not, 2 bad input."""

# ruff: noqa: E402 (signals are handled before the seconds that the other imports take)
from rehearsal.interrupts import Interrupts

interrupts = Interrupts()

import os
import shutil
import signal
import sys
import threading
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console

from rehearsal.aws.process import EmulatedAws
from rehearsal.display import Show
from rehearsal.engine.registry import ENGINES, usable_engine
from rehearsal.faults import FORMS, faults_of
from rehearsal.hypervisor.registry import BACKENDS, usable_backend
from rehearsal.locks import address_block
from rehearsal.report import show as show_report
from rehearsal.report import write
from rehearsal.report_page import write_page
from rehearsal.run import rehearse
from rehearsal.workspace import ROOT, Options, account_folder, bakeable, check_region, sweep_accounts, whole_nodes
from trainyard.base import InputError

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)


@app.callback()
def root() -> None:
    """Rehearse a stack offline: emulated AWS, nodes as processes, the job for real."""


@app.command()
def run(
    stack: Annotated[str, typer.Option("--stack", "-s", help="Stack file stacks/Pulumi.<stack>.yaml.")] = "local",
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="NUMBER", help="Worker nodes, in place of the stack's.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="FAULT", help=f"What AWS shall refuse: {'; '.join(FORMS)}. Repeatable."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help=f"What runs the program: {', '.join(ENGINES)}.")
    ] = "mocks",
    backend: Annotated[
        str, typer.Option("--backend", metavar="BACKEND", help=f"How nodes are booted: {', '.join(BACKENDS)}.")
    ] = "process",
    bake: Annotated[bool, typer.Option("--bake", help="Bake the workers' image too, before destroy.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report on stdout as JSON.")] = False,
) -> None:
    """Provision, configure, train, bring home, destroy: one stack, start to end."""
    try:
        options = Options(
            stack=stack,
            nodes=whole_nodes(nodes),
            faults=faults_of(fault or []),
            engine=usable_engine(engine),
            backend=(usable := usable_backend(backend)),
            bake=bakeable(bake, usable),
        )
        with Show() as display:
            report, story = rehearse(options, display, interrupts)
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    try:
        file, page = write(report, options.folder), write_page(report, story, options.folder)
    except OSError as error:
        print(f"rehearsal: the report can't be written to {options.folder}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(report.model_dump_json())
    else:
        show_report(report, Console())
        print(f"report: {file}\npage:   {page}")
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def aws(
    region: Annotated[str, typer.Option("--region", help="AWS region.")] = "us-east-1",
    backend: Annotated[str, typer.Option("--backend", help="The back-end of rehearsals in it.")] = "process",
) -> None:
    """An emulated AWS that stays until Ctrl-C: rehearsals in its environment share the account, as `pulumi up`s do."""
    try:
        check_region(region, "the command", "--region")
        loopback = usable_backend(backend) == "process"
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    sweep_accounts(ROOT / "build" / "rehearsal")
    folder = account_folder(ROOT / "build" / "rehearsal", os.getpid())
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    with ExitStack() as stack:
        addresses = stack.enter_context(address_block()) if loopback else None
        running = stack.enter_context(EmulatedAws.start(folder, addresses, region))
        for name, value in running.environment().items():
            print(f"export {name}={value}", flush=True)
        ending.wait()
    shutil.rmtree(folder)


if __name__ == "__main__":
    app()
