"""`trainyard`: launch, stop, status, logs, results, bake. Exit status: 0 done, 1 failed, 2 bad input."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from botocore.exceptions import BotoCoreError, ClientError

from trainyard.base import InputError
from trainyard.operations import archive, bake, runs
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.image_builder import end_builders
from trainyard.operations.launch import Launch
from trainyard.operations.progress import display
from trainyard.operations.status import in_words, status_of

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)

Stack = Annotated[str, typer.Option("--stack", "-s", help="Pulumi stack, e.g. a100-cluster.")]
Run = Annotated[str | None, typer.Option("--run", help="Run id; none: the newest.")]
ManifestUri = Annotated[
    str | None, typer.Option("--manifest", help="S3 URI of the stack's manifest; none: found by the stack's tags.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@contextmanager
def _told() -> Iterator[None]:
    """Each kind of failure as one message on stderr and its exit status."""
    try:
        yield
    except InputError as error:
        _fail(str(error), 2)
    except (LaunchError, RuntimeError, TimeoutError, BotoCoreError, ClientError) as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, status: int) -> None:
    print(f"trainyard: {message}", file=sys.stderr)
    raise typer.Exit(status)


@app.command()
def launch(
    stack: Stack,
    manifest: ManifestUri = None,
    update: Annotated[
        bool, typer.Option("--update", help="A run of another manifest is stopped first; one of this is left alone.")
    ] = False,
    sha256: Annotated[str | None, typer.Option("--sha256", help="SHA-256 that the manifest must have.")] = None,
) -> None:
    """Start the stack's job: all nodes or none. A run that only wants more nodes is given them.

    Returns when it has started; the last line on stdout is JSON.
    """
    with _told(), display() as show:
        cluster = Cluster.of(stack, manifest, sha256)
        result = Launch(cluster, show).go(update)
        archive.mark_old(cluster, show)
        print(result.model_dump_json())


@app.command()
def stop(stack: Stack, manifest: ManifestUri = None, as_json: Json = False) -> None:
    """End the stack's run and its worker nodes."""
    with _told(), display() as show:
        cluster = Cluster.of(stack, manifest)
        if manifest is None:  # destroy names one, and may come twice; a person who mistypes a stack is told
            cluster.require_up()
        ended = runs.stop(cluster)
        if left := end_builders(cluster):
            show.line("builder", f"ended: {', '.join(left)}")
        archive.mark_old(cluster, show)
        print(json.dumps({"ended": ended}) if as_json else f"{len(ended)} nodes ended")


@app.command()
def status(stack: Stack, run: Run = None, as_json: Json = False) -> None:
    """How a run stands."""
    with _told():
        found = status_of(Cluster.of(stack), run)
        if as_json:
            print(found.model_dump_json())
            return
        print("\n".join(in_words(found)))


@app.command()
def logs(
    stack: Stack,
    run: Run = None,
    source: Annotated[
        str, typer.Option(help="Regular expression on instance/boot/attempt-source, e.g. rank0-stderr or torchrun.")
    ] = "rank",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
) -> None:
    """What the ranks wrote, each line with its writer."""
    with _told():
        found = False
        for writer, line in runs.logs(Cluster.of(stack), run, source, follow):
            print(f"{writer}: {line}", flush=follow)
            found = True
        if not found:
            print(f"trainyard: no line of a source like {source!r} is in S3 yet", file=sys.stderr)


@app.command()
def results(
    stack: Stack,
    run: Run = None,
    to: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """Bring a run's results home."""
    with _told():
        found = runs.results(Cluster.of(stack), run, to)
        if as_json:
            print(found.model_dump_json())
            return
        print(f"{len(found.files)} files of {found.run} in {found.folder}")
        for uri in found.checkpoints:
            print(uri)


@app.command("bake")
def bake_image(
    stack: Stack,
    group: Annotated[
        str | None, typer.Option("--group", help="Worker group that the image is for; none: the first.")
    ] = None,
    instance_type: Annotated[
        str | None,
        typer.Option(
            "--instance-type", help="Of the builder; none: the group's. Another leaves its drivers to the nodes."
        ),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", min=1, help="After which the builder ends in any case.")] = 90,
    file: Annotated[
        Path | None, typer.Option("--file", help="The stack's file; none: stacks/Pulumi.STACK.yaml.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the image of a stack's workers: one instance configures itself and becomes it; the stack's file names it."""
    with _told(), display() as show:
        asked = bake.Asked(minutes=minutes, group=group, instance_type=instance_type, file=file)
        done = bake.bake(Cluster.of(stack), asked, show)
        print(done.model_dump_json() if as_json else "\n".join(bake.in_words(done, stack)))


if __name__ == "__main__":
    app()
