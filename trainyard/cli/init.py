"""`trainyard init`."""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.aws.region import configured_region
from trainyard.cli.options import JsonOption
from trainyard.operations.init_project import InitOptions, format_result, init_project

DEFAULT_REGION = "us-east-1"


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the stack.")] = "dev",
    instance_type: Annotated[str, typer.Option("--instance-type", help="Type of the worker nodes.")] = "c7i.xlarge",
    nodes: Annotated[int, typer.Option("--nodes", help="Number of worker nodes.")] = 2,
    region: Annotated[
        str | None, typer.Option("--region", help="AWS region. Default: the configured region, else us-east-1.")
    ] = None,
    source: Annotated[Path, typer.Option("--source", help="Folder of the job, with --command.")] = Path(),
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
            help="Data of the script: a dataset of `trainyard data put`, or s3://BUCKET/PREFIX/. Default: none.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a stack file into the folder `trainyard` of this repository, and what the Pulumi CLI needs there."""
    options = InitOptions(
        instance_type=instance_type,
        nodes=nodes,
        region=region or configured_region() or DEFAULT_REGION,
        source=source.absolute(),
        command=command,
        data=data,
    )
    result = init_project(name, Path.cwd(), options)
    print(result.model_dump_json() if as_json else "\n".join(format_result(result)))
