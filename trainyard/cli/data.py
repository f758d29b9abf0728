"""`trainyard data`."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from trainyard.cli.options import FileOption, JsonOption, StackOption, current_project
from trainyard.config.field_types import DatasetName
from trainyard.errors import InputError, Problem
from trainyard.operations.cluster import Cluster
from trainyard.operations.data import describe_upload, list_datasets, put_dataset
from trainyard.operations.progress import create_display
from trainyard.operations.stack_file import read_stack_settings
from trainyard.quantity import quantity

data = typer.Typer(no_args_is_help=True, help="Upload and list the datasets of a stack's data bucket.")


@data.command()
def put(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="Folder whose files are uploaded, with its subfolders and linked folders.")
    ],
    name: Annotated[str, typer.Argument(help="Name of the dataset, for job.dataset and job.model: dataset:NAME.")],
    stack: StackOption,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload a folder as a dataset. Files that exist with the same checksum are skipped.

    A repeated command continues an interrupted upload with the files that are not complete. The data bucket is created
    if the stack has none yet.
    """
    try:
        TypeAdapter(DatasetName).validate_python(name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError([Problem("NAME", name, reason, "Choose another name", "invalid_format")]) from None
    project = current_project(context)
    settings = read_stack_settings(stack, project, file)
    with create_display() as display:
        result = put_dataset(Cluster.from_environment(stack, project=project), settings, folder, name, display)
    print(result.model_dump_json() if as_json else describe_upload(result))


@data.command("ls")
def list_names(
    context: typer.Context, stack: StackOption, file: FileOption = None, as_json: JsonOption = False
) -> None:
    """List the datasets: name, files, bytes, age."""
    project = current_project(context)
    listed = list_datasets(Cluster.from_environment(stack, project=project), read_stack_settings(stack, project, file))
    if as_json:
        print(json.dumps({"datasets": [each.model_dump() for each in listed]}))
        return
    if not listed:
        print(f"stack {stack} has no datasets. To upload one: trainyard data put FOLDER NAME -s {stack}")
    for each in listed:
        age = (time.time() - each.modified) / 3600
        state = "" if each.complete else "  incomplete: run data put again"
        size = f"{each.bytes / 1e9:10.3f} GB"
        print(f"{each.name:<32} {quantity(each.files, 'file'):>14} {size} {age:8.1f} hours old{state}")
