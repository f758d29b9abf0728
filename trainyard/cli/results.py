"""`trainyard results`."""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.options import JsonOption, RunOption, StackOption
from trainyard.operations.cluster import Cluster
from trainyard.operations.runs import download_results
from trainyard.quantity import quantity


def results(
    stack: StackOption,
    run: RunOption = None,
    to: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Download a run's results and list its complete checkpoints."""
    downloaded = download_results(Cluster.from_environment(stack), run, to)
    if as_json:
        print(downloaded.model_dump_json())
        return
    print(f"downloaded {quantity(len(downloaded.files), 'file')} of {downloaded.run} to {downloaded.folder}")
    for uri in downloaded.checkpoints:
        print(uri)
