"""`trainyard results`."""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.options import JsonOption, RunOption, StackOption, current_project
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import create_display
from trainyard.operations.runs import download_results
from trainyard.operations.saved import format_saved
from trainyard.quantity import quantity
from trainyard.terminal import escape_control_characters


def results(
    context: typer.Context,
    stack: StackOption,
    run: RunOption = None,
    to: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="NAME|newest", help="Also download this checkpoint, into `checkpoints` of the folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Download a run's results, and list its checkpoints and results with size, number of files and age.

    A repeated download continues one that was interrupted.
    """
    cluster = Cluster.from_environment(stack, project=current_project(context))
    with create_display() as display:
        downloaded = download_results(cluster, run, to, display, checkpoint)
    if as_json:
        print(downloaded.model_dump_json())
        return
    print(f"downloaded {quantity(len(downloaded.files), 'file')} of {downloaded.run} to {downloaded.folder}")
    for line in format_saved(downloaded):
        print(escape_control_characters(line))
