"""`trainyard selftest`."""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.aws.access_problems import region_missing
from trainyard.aws.region import configured_region
from trainyard.cli.options import JsonOption
from trainyard.errors import InputError
from trainyard.operations.progress import PlainDisplay
from trainyard.operations.selftest import operation
from trainyard.operations.selftest.report import SEND_TO, format_summary


def selftest(
    step: Annotated[
        str | None, typer.Option("--step", metavar="1|2", help="Step of docs/first-real-run.md. Default: both.")
    ] = None,
    region: Annotated[
        str | None, typer.Option("--region", help="AWS region. Default: that of the environment or the AWS profile.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Execute without confirmation.")] = False,
    report: Annotated[
        Path, typer.Option("--report", help="JSON file of the report; a Markdown file is written next to it.")
    ] = Path("trainyard-selftest.json"),
    destroy: Annotated[
        bool, typer.Option("--destroy", help="Only destroy the stacks that earlier selftests left.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--folder", help="Folder for Pulumi's state until everything is destroyed.")
    ] = operation.DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Execute steps 1 and 2 of docs/first-real-run.md in an AWS account, destroy them, and write a report to send.

    It shows the maximum cost and requires confirmation. Exit status 1 unless all passed and nothing remains.
    """
    display = PlainDisplay()  # Pulumi's lines would not fit into rows
    if destroy:
        operation.destroy_existing_stacks(folder, display)
        raise typer.Exit
    region = region or configured_region()
    if not region:
        raise InputError([region_missing("Set it, or use --region")])

    def confirm(question: str) -> None:
        if not yes:
            typer.confirm(question, abort=True, err=True)

    result = operation.selftest(step, region, folder, report, display, confirm)
    files = f"report: {report} and {report.with_suffix('.md')}"
    print(result.model_dump_json() if as_json else "\n".join([*format_summary(result), files, SEND_TO]))
    if not result.ok:
        raise typer.Exit(130 if result.interrupted else 1)
