"""Command-line options of several benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout.")]
Server = Annotated[Path | None, typer.Option("--server", help="Path of the S3 server's program.")]
StateMib = Annotated[int, typer.Option("--mib", min=1, help="Size of the state, MiB.")]
Ranks = Annotated[int, typer.Option("--ranks", min=2, help="Number of processes.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Runs of each variant.")]
Sizes = Annotated[list[int] | None, typer.Option("--nodes", help="Numbers of nodes, smallest first.")]
