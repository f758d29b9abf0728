"""`trainyard logs`."""

import json
import sys
from typing import Annotated

import typer

from trainyard.cli.options import RunOption, StackOption, current_project
from trainyard.operations.cluster import Cluster
from trainyard.operations.runs import read_logs, read_run_record
from trainyard.terminal import escape_control_characters


def logs(
    context: typer.Context,
    stack: StackOption,
    run: RunOption = None,
    source: Annotated[
        str,
        typer.Option(
            help="Print only writers that match this regular expression. A writer is INSTANCE/BOOT/ATTEMPT-SOURCE, "
            "such as i-0abc/0001/0002-rank0-stderr.",
        ),
    ] = "rank",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, with the keys writer and line.")
    ] = False,
) -> None:
    """Print the output of the ranks; each line begins with its writer.

    With --follow the end of the run is printed on stderr, and the exit status is 1 if the run has failed.
    """
    cluster, has_lines = Cluster.from_environment(stack, project=current_project(context)), False
    if follow:  # the current run may change meanwhile
        run = read_run_record(cluster, run).run
    for writer, line in read_logs(cluster, run, source, follow):
        entry = {"writer": writer, "line": line}
        print(json.dumps(entry) if as_json else escape_control_characters(f"{writer}: {line}"), flush=follow)
        has_lines = True
    if not has_lines:
        print(f"trainyard: S3 has no log line of a writer that matches --source {source!r}", file=sys.stderr)
    if follow:
        assert run is not None
        outcome = cluster.outcome(run)
        assert outcome is not None
        reason = escape_control_characters(outcome.reason)
        print(f"trainyard: run {run}: {outcome.state}, {reason}", file=sys.stderr)
        raise typer.Exit(1 if outcome.state == "failed" else 0)
