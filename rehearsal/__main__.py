"""Command line of the rehearsal. Exit status of `run`: 0 no errors, 1 errors, 2 invalid input, 130 interrupted."""

# ruff: noqa: E402 (the signal handlers must be set before the other imports, which take seconds)
from rehearsal.interrupts import INTERRUPTED_STATUS, Interrupts

interrupts = Interrupts()

import json
import os
import shlex
import shutil
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rehearsal.aws.process import EmulatedAws
from rehearsal.chaos.command import CHAOS_FILE, ChaosOptions, run_chaos
from rehearsal.chaos.report import print_report as print_chaos_report
from rehearsal.display import Display
from rehearsal.engine.registry import ENGINES, select_engine
from rehearsal.faults import FAULT_SYNTAX, parse_faults
from rehearsal.hypervisor.registry import BACKENDS, select_backend
from rehearsal.kept.background import Background, Keep
from rehearsal.kept.down import end_kept_rehearsal
from rehearsal.kept.hold import DEFAULT_HOURS, check_can_keep, parse_hours
from rehearsal.kept.stack_settings import update_stack_settings, write_stack_settings
from rehearsal.locks import address_block
from rehearsal.profiles import select_profile
from rehearsal.report import REPORT_FILE, print_report, write_report
from rehearsal.report_page import PAGE_FILE, write_page
from rehearsal.run import rehearse
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.sources import Sources, check_folder
from rehearsal.timeline import Timeline
from rehearsal.workspace import (
    Options,
    account_folder,
    check_bake,
    parse_changes,
    parse_nodes,
    remove_stale_accounts,
)
from trainyard.aws.region import require_known_region
from trainyard.config.project import find_project
from trainyard.errors import InputError
from trainyard.models.report import Report

_APP_OPTIONS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # otherwise wrong options are reported in a box that breaks lines
}
ProjectOption = Annotated[
    Path | None,
    typer.Option("--project", metavar="DIR", help="Folder with the stack files. Default: as for `trainyard -C`."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result to stdout as JSON.")]
app = typer.Typer(no_args_is_help=True, help=__doc__, **_APP_OPTIONS)


@app.callback()
def root() -> None:
    """Rehearse a stack offline: in an emulated AWS, with nodes on this machine that run the real job."""


@app.command()
def run(
    stack: Annotated[str, typer.Option("--stack", "-s", help="Stack with a file Pulumi.<stack>.yaml.")] = "local",
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="NUMBER", help="Number of worker nodes; default: the stack's.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="FAULT", help=f"Fault to inject: {'; '.join(FAULT_SYNTAX)}. Repeatable."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            help=f"Engine that runs the Pulumi program: {', '.join(ENGINES)}. mocks needs no Pulumi CLI.",
        ),
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
            help="Timing of the emulated AWS: realistic (its minutes take seconds) or instant.",
        ),
    ] = "realistic",
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Files to rehearse with, in place of the built-in corpus."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="FOLDER",
            help="Folder with a copy of the job's model: config.json, and the tokenizer if the script loads it. "
            "Weights are optional.",
        ),
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Validate the stack file and run the preview only: create no resource.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep account and nodes up after the results, in the background.")
    ] = False,
    keep_hours: Annotated[
        str | None,
        typer.Option(
            "--keep-hours",
            metavar="HOURS",
            help=f"Hours after which a kept rehearsal ends. Default: {DEFAULT_HOURS:g}.",
        ),
    ] = None,
    down: Annotated[
        bool, typer.Option("--down", help="End the kept rehearsal of the stack: destroy and audit.")
    ] = False,
    update_settings: Annotated[
        bool, typer.Option("--update-settings", hidden=True, help="Used by `trainyard up` in a kept rehearsal.")
    ] = False,
    write_settings: Annotated[
        Path | None, typer.Option("--write-settings", hidden=True, help="Used by `trainyard run` in a kept rehearsal.")
    ] = None,
    project: ProjectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rehearse one stack: deploy it, train, download the results, destroy it and audit the account."""
    if down:
        raise typer.Exit(_end(project or Path.cwd(), stack, as_json))
    try:
        faults, hours = parse_faults(fault or []), parse_hours(keep_hours)
        options = Options(
            project=(rehearsed := find_project(project or Path.cwd())),
            stack=stack,
            nodes=parse_nodes(nodes),
            faults=tuple(each for each in faults if not isinstance(each, ScheduledFault)),
            run_faults=tuple(each for each in faults if isinstance(each, ScheduledFault)),
            engine=select_engine(engine),
            backend=(selected := select_backend(backend)),
            bake=check_bake(bake, selected),
            profile=select_profile(profile),
            changes=parse_changes(change or []),
            preview_only=preview,
            keep_nodes_minutes=hours * 60 if keep else None,
            sources=Sources(data=check_folder("--data", data), model=check_folder("--model", model)),
        )
        rehearsed.require_program()
        if update_settings:
            update_stack_settings(options)
            raise typer.Exit(0)
        if write_settings:
            write_stack_settings(options, write_settings)
            raise typer.Exit(0)
        if keep:
            check_can_keep(options.folder, stack, preview)
            # The last of each option counts: absolute paths, because `trainyard run` repeats them in another folder.
            paths = {"--project": rehearsed.folder, "--data": options.sources.data, "--model": options.sources.model}
            repeated = [part for name, path in paths.items() if path for part in (name, str(path))]
            arguments = (*sys.argv[2:], *repeated)
            options = replace(options, keep=Keep(hours=hours, background=Background.start(), arguments=arguments))
        with Display() as display:
            report, timeline = rehearse(options, display, interrupts)
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    _write(report, timeline, options.folder)
    if options.keep is None or not options.keep.background.is_announced:  # else --down prints it
        _print(report, options.folder, as_json)
    raise typer.Exit(0 if report.ok else INTERRUPTED_STATUS if interrupts.received else 1)


def _write(report: Report, timeline: Timeline, folder: Path) -> None:
    """Write the report and its page into the folder. Exits with status 1 if they cannot be written."""
    try:
        write_page(report, timeline, folder)
        write_report(report, folder)
    except OSError as error:
        print(f"rehearsal: cannot write the report to {folder}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _stdout() -> Console:
    """Return the console of stdout. Without a terminal, tables are as wide as a log line."""
    return Console(width=None if sys.stdout.isatty() else 120)


def _print(report: Report, folder: Path, as_json: bool) -> None:
    if as_json:
        print(report.model_dump_json())
    else:
        print_report(report, _stdout())
        print(f"report: {folder / REPORT_FILE}\npage:   {folder / PAGE_FILE}")


def _end(start: Path, stack: str, as_json: bool) -> int:
    """End the kept rehearsal of a stack of the project of `start`, and print its report. Returns the exit status."""
    try:
        folder = find_project(start).rehearsal(stack)
        report = end_kept_rehearsal(folder, stack)
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, TimeoutError) as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return 1
    if report is None:
        return 1
    _print(report, folder, as_json)
    return 0 if report.ok else 1


@app.command()
def chaos(
    stack: Annotated[str, typer.Option("--stack", "-s", help="Stack with a file Pulumi.<stack>.yaml.")] = "local",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the faults: their kinds, places and times.")] = 1,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="Minutes in which faults are injected.")] = 10,
    period: Annotated[float, typer.Option("--period", min=1, help="Mean seconds between two faults.")] = 120,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Steps of the job; default: 1,000 per minute of --minutes.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting to change. Repeatable.")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help=f"Runs the nodes: {', '.join(BACKENDS)}.")] = "process",
    project: ProjectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rehearse a stack with random faults, and compare the job with an undisturbed one. Exit status as of `run`."""
    try:
        options = Options(
            project=(rehearsed := find_project(project or Path.cwd())),
            stack=stack,
            backend=select_backend(backend),
            changes=parse_changes(change or []),
        )
        rehearsed.require_program()
        chaos_options = ChaosOptions(seed=seed, minutes=minutes, period_seconds=period, steps=steps)
        with Display() as display:
            report = run_chaos(options, chaos_options, display, interrupts)
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if report is not None and as_json:
        print(report.model_dump_json())
    elif report is not None:
        print_chaos_report(report, _stdout())
        print(f"report: {options.folder / CHAOS_FILE}")
    is_ok = report is not None and report.ok
    raise typer.Exit(INTERRUPTED_STATUS if interrupts.received else 0 if is_ok else 1)


@app.command()
def aws(
    region: Annotated[str, typer.Option("--region", help="AWS region.")] = "us-east-1",
    backend: Annotated[str, typer.Option("--backend", help="Backend of the rehearsals that will use it.")] = "process",
    project: ProjectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run an emulated AWS until Ctrl-C. It prints environment variables for rehearsals and `pulumi up` to share it."""
    try:
        require_known_region(region, "--region", "the command")
        uses_loopback = select_backend(backend) == "process"
        rehearsals = find_project(project or Path.cwd()).rehearsals
    except InputError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    remove_stale_accounts(rehearsals)
    folder = account_folder(rehearsals, os.getpid())
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with ExitStack() as stack:
        addresses = stack.enter_context(address_block()) if uses_loopback else None
        account = stack.enter_context(EmulatedAws.start(folder, addresses, region))
        variables = account.environment()
        exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        print(json.dumps(variables) if as_json else "\n".join(exports), flush=True)
        stopped.wait()
    shutil.rmtree(folder)


def main() -> None:
    """Run the command line. `trainyard rehearse` sets the name of the program, and uses the command `run` only."""
    program = os.environ.pop("TRAINYARD_PROGRAM", None)
    if program is None:
        app()
        return
    command = typer.Typer(**_APP_OPTIONS)
    command.command()(run)
    command(prog_name=program, args=sys.argv[2:])


if __name__ == "__main__":
    main()
