"""What an operator asks of a run: what its ranks wrote, its results, its end."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from trainyard.base import Contract, InputError, Problem
from trainyard.models import layout
from trainyard.models.layout import RunLayout
from trainyard.models.run import Outcome, RunRecord
from trainyard.models.streams import Cursor, metric_lines
from trainyard.operations.cluster import Cluster
from trainyard.operations.worker_groups import Workers

POLL_SECONDS = 1.0
STOP_SECONDS = 15 * 60
METRICS = "metrics.jsonl"


class FetchedResults(Contract):
    """`trainyard results --json`."""

    run: str = Field(description="Run id.")
    results_uri: str = Field(description="Where the results lie.")
    folder: str = Field(description="Where they were put.")
    files: tuple[str, ...] = Field(description="Files, relative to the folder.")
    checkpoints: tuple[str, ...] = Field(description="URIs of the complete checkpoints, oldest first.")


def find_run(cluster: Cluster, run: str | None) -> RunRecord:
    """The run named, or the newest. Raises InputError where there is none."""
    if run is None:
        newest = cluster.newest_run()
        if newest is not None:
            return newest
        why, fix = "the stack has had no run", f"pulumi up -s {cluster.stack}"
    else:
        found = cluster.record(run)
        if found is not None:
            return found
        why, fix = f"no such run in s3://{cluster.data.name}", "Name one of runs/, or none for the newest"
    raise InputError([Problem(key="--run", value=run, why=why, fix=fix)])


def logs(cluster: Cluster, run: str | None, source: str, follow: bool = False) -> Iterator[tuple[str, str]]:
    """(writer, line) of the logs of every node whose source matches the regular expression `source`.

    `follow`: go on with what comes, until the run is over.
    """
    try:
        wanted = re.compile(source)
    except re.error as error:
        why = f"not a regular expression: {error}"
        raise InputError(
            [Problem(key="--source", value=source, why=why, fix="Write one such as rank0-stderr")]
        ) from None
    record = find_run(cluster, run)
    prefix = RunLayout(record.run).logs
    cursor, over = Cursor(cluster.data, prefix), False
    while True:
        for key, line in cursor.lines():
            writer = key.removeprefix(prefix).rsplit("-", 1)[0]
            if wanted.search(writer):
                yield writer, line.decode(errors="replace")
        if over or not follow:
            return
        over = cluster.outcome(record.run) is not None  # then one more look: its last lines may have come meanwhile
        if not over:
            time.sleep(POLL_SECONDS)


def complete_checkpoints(cluster: Cluster, run: str) -> tuple[str, ...]:
    """URIs of a run's checkpoints that bear the commit mark, oldest first."""
    prefix = RunLayout(run).checkpoints
    names = layout.complete_checkpoints(cluster.data.keys(prefix), prefix)
    return tuple(f"s3://{cluster.data.name}/{prefix}{name}/" for name in names)


def results(cluster: Cluster, run: str | None, folder: Path) -> FetchedResults:
    """Bring a run's results home, below `folder`; its metric lines, where it left any, as metrics.jsonl."""
    if folder.exists() and not folder.is_dir():
        why, fix = "it is there and is no folder", "Name a folder"
        raise InputError([Problem(key="--to", value=str(folder), why=why, fix=fix)])
    record = find_run(cluster, run)
    prefix = RunLayout(record.run).results
    files = []
    for key in cluster.data.keys(prefix):
        name = key.removeprefix(prefix)
        cluster.data.download(key, folder / name)
        files.append(name)
    if metrics := metric_lines(cluster.data, record.run):
        folder.mkdir(parents=True, exist_ok=True)  # a run that goes on has metrics, and no results yet
        (folder / METRICS).write_text("".join(f"{line.model_dump_json()}\n" for line in metrics))
        files.append(METRICS)
    return FetchedResults(
        run=record.run,
        results_uri=f"s3://{cluster.data.name}/{prefix}",
        folder=str(folder),
        files=tuple(files),
        checkpoints=complete_checkpoints(cluster, record.run),
    )


def stop(cluster: Cluster) -> list[str]:
    """End the cluster's run and its nodes; returns the nodes that ran. Nothing to do is fine: destroy may come twice.

    Raises TimeoutError when nodes are still there after a quarter of an hour.
    """
    if not cluster.is_up:
        return []
    run = cluster.current_run()
    if run is not None and cluster.outcome(run.run) is None:
        attempts = control.attempt if (control := cluster.control(run.run)) else 0
        outcome = Outcome(state="stopped", reason="trainyard stop", attempts=attempts, ended=time.time())
        cluster.data.write(RunLayout(run.run).outcome, outcome.model_dump_json().encode())
    workers = Workers(cluster.manifest)
    ended: list[str] = []
    deadline = time.monotonic() + STOP_SECONDS
    while members := workers.empty():
        ended = ended or members
        if time.monotonic() > deadline:
            raise TimeoutError(f"nodes {', '.join(members)} are still in the group after {STOP_SECONDS // 60} minutes")
        time.sleep(POLL_SECONDS)
    return ended
