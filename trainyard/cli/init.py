"""`trainyard init`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from trainyard.aws.region import configured_region, require_known_region
from trainyard.cli.options import JsonOption
from trainyard.errors import InputError, Problem
from trainyard.operations.init_project import InitOptions, format_result, init_project

DEFAULT_REGION = "us-east-1"


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the stack.")] = "dev",
    instance_type: Annotated[str, typer.Option("--instance-type", help="Type of the worker nodes.")] = "c7i.xlarge",
    nodes: Annotated[int, typer.Option("--nodes", help="Number of worker nodes.")] = 2,
    region: Annotated[
        str | None, typer.Option("--region", help="AWS region. Default: the configured region, else us-east-1.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", help="Folder of the script of --command. Default: the working directory."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="COMMAND",
            help="Script in the folder and its arguments, e.g. 'train.py --epochs 3'. Default: the built-in trainer.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Data of the script of --command: a dataset of `trainyard data put`, or s3://BUCKET/PREFIX/. Default: "
            "none.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the stack file of a new stack.

    Outside an existing project this creates the folder `trainyard` with a Pulumi project.
    """
    if command is None:
        _refuse_options_of_a_script({"--source": source, "--data": data})
    if region is not None:
        require_known_region(region, "--region", "the command")
    options = InitOptions(
        instance_type=instance_type,
        nodes=nodes,
        region=region or configured_region() or DEFAULT_REGION,
        source=(source or Path()).absolute(),
        command=command,
        data=data,
    )
    result = init_project(name, Path.cwd(), options)
    print(result.model_dump_json() if as_json else "\n".join(format_result(result)))


def _refuse_options_of_a_script(options: Mapping[str, object]) -> None:
    """Raise InputError if any of these options has a value: the built-in trainer has no script that uses it."""
    values = {name: str(value) for name, value in options.items() if value is not None}
    if values:
        reason = "only a script uses it, and without --command the stack has the built-in trainer"
        fix = "Name the script with --command, or omit the option"
        raise InputError([Problem(name, value, reason, fix, "command_missing") for name, value in values.items()])
