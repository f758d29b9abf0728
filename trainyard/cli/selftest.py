"""`trainyard selftest`."""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.aws.region import configured_region
from trainyard.cli.options import JsonOption
from trainyard.errors import InputError, Problem
from trainyard.operations import selftest as operation
from trainyard.operations.progress import PlainDisplay
from trainyard.operations.selftest_plan import Runs, select_runs
from trainyard.operations.selftest_report import format_leftovers, format_summary


def selftest(
    run: Annotated[
        str,
        typer.Option("--run", metavar=f"[{'|'.join(Runs)}]", help="Runs of docs/first-real-run.md to execute."),
    ] = Runs.ALL.value,
    region: Annotated[
        str | None, typer.Option("--region", help="AWS region. Default: that of the environment or the AWS profile.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run without confirmation.")] = False,
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
    """Run the first two runs of docs/first-real-run.md in an AWS account, destroy them, and write a report to send.

    It shows the maximum cost and requires confirmation. Exit status 1 unless all steps passed and nothing remains.
    """
    runs = select_runs(run)
    display = PlainDisplay()  # Pulumi's lines would not fit into rows
    if destroy:
        leftovers = operation.destroy_existing_stacks(folder, display)
        print("\n".join(format_leftovers(leftovers)))
        raise typer.Exit(0 if all(each.retained for each in leftovers) else 1)
    region = region or configured_region()
    if not region:
        raise InputError(
            [Problem("--region", None, "no AWS region is set", "Name one such as us-east-1", "region_missing")]
        )

    def confirm(question: str) -> None:
        if not yes:
            typer.confirm(question, abort=True, err=True)

    options = operation.SelftestOptions(runs=runs, region=region, folder=folder, report=report)
    result = operation.selftest(options, display, confirm)
    print(result.model_dump_json() if as_json else "\n".join(format_summary(result, report)))
    if not result.ok:
        raise typer.Exit(130 if result.interrupted else 1)
