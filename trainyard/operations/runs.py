"""Operations on a run: read its logs, download its results."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.models.layout import RunLayout, split_s3_uri
from trainyard.models.run import RunRecord
from trainyard.models.saved import SavedFiles, SavedItem
from trainyard.models.streams import Cursor, metric_lines
from trainyard.operations.cluster import Cluster
from trainyard.operations.download import download
from trainyard.operations.progress import Display
from trainyard.operations.saved import list_saved

POLL_SECONDS = 1.0
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
NEWEST = "newest"


class DownloadedResults(SavedFiles):
    """`trainyard results --json`."""

    run: str = Field(description="Run id.")
    results_uri: str = Field(description="S3 URI of the results.")
    folder: str = Field(description="Local folder of the downloaded files.")
    files: tuple[str, ...] = Field(description="Downloaded files, relative to the folder.")


def read_run_record(cluster: Cluster, run: str | None) -> RunRecord:
    """Return the record of a run, the newest when `run` is None. Raises InputError when it does not exist."""
    record = cluster.newest_run() if run is None else cluster.record(run)
    if record is not None:
        return record
    if run is None:
        reason, fix = "the stack has no runs", f"Launch one: trainyard up -s {cluster.stack}"
    else:
        reason = f"s3://{cluster.data.name} has no such run"
        fix = "Use the name of a folder in runs/, or name no run for the newest"
    raise InputError([Problem("run", run, reason, fix, "unknown_run")])


def read_logs(cluster: Cluster, run: str | None, source: str, follow: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (writer, line) of the logs of all nodes, for writers that match the regular expression `source`.

    `follow`: continue with new lines until the run ends.
    """
    try:
        pattern = re.compile(source)
    except re.error as error:
        reason = f"not a regular expression: {error}"
        fix = "Use an expression such as rank0-stderr"
        raise InputError([Problem("--source", source, reason, fix, "invalid_pattern")]) from None
    record = read_run_record(cluster, run)
    prefix = RunLayout(record.run).logs
    cursor, has_ended = Cursor(cluster.data, prefix), False
    while True:
        for key, line in cursor.lines():
            writer = key.removeprefix(prefix).rsplit("-", 1)[0]
            if pattern.search(writer):
                yield writer, line.decode(errors="replace")
        if has_ended or not follow:
            return
        has_ended = cluster.outcome(record.run) is not None  # then poll once more for the last lines
        if not has_ended:
            time.sleep(POLL_SECONDS)


def download_results(
    cluster: Cluster, run: str | None, folder: Path, display: Display, checkpoint: str | None = None
) -> DownloadedResults:
    """Download a run's results into `folder`, and its metrics, when it has any, as metrics.jsonl.

    `checkpoint`: name of a checkpoint, or NEWEST, to download into `checkpoints` of the folder. Raises InputError when
    the run, the checkpoint or the folder is unusable, or when S3 has archived an object.
    """
    if folder.exists() and not folder.is_dir():
        reason, fix = "it exists and is not a folder", "Name a folder"
        raise InputError([Problem("--to", str(folder), reason, fix, "not_a_folder")])
    record = read_run_record(cluster, run)
    saved = list_saved(cluster, record, cluster.outcome(record.run))
    prefix = RunLayout(record.run).results
    selected = None if checkpoint is None else _select_checkpoint(saved, record.run, checkpoint)
    if not folder.exists():  # the job's source may contain the folder: nodes need no results
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_text("*\n")
    files = list(download(cluster.data, cluster.data.objects(prefix), prefix, folder, display))
    if metrics := metric_lines(cluster.data, record.run):
        (folder / METRICS).write_text("".join(f"{line.model_dump_json()}\n" for line in metrics))
        files.append(METRICS)
    if selected is not None:
        files += _download_checkpoint(cluster, selected, folder, display)
    return DownloadedResults(
        **dict(saved),
        run=record.run,
        results_uri=f"s3://{cluster.data.name}/{prefix}",
        folder=str(folder),
        files=tuple(files),
    )


def _select_checkpoint(saved: SavedFiles, run: str, name: str) -> SavedItem:
    names = [item.name for item in saved.checkpoints]
    for item in reversed(saved.checkpoints):
        if name in (item.name, NEWEST):
            return item
    reason = f"run {run} has no such checkpoint" if names else f"run {run} has no checkpoint"
    newest = ", ".join(reversed(names[-10:]))
    fix = f"{did_you_mean(name, names)}The newest are {newest}" if names else "Omit --checkpoint, or use --run"
    raise InputError([Problem("--checkpoint", name, reason, fix, "unknown_checkpoint")])


def _download_checkpoint(cluster: Cluster, item: SavedItem, folder: Path, display: Display) -> list[str]:
    key, prefix = split_s3_uri(item.uri)[1], split_s3_uri(item.parent_uri)[1]
    objects = [stored for stored in cluster.data.objects(key) if key.endswith("/") or stored.key == key]
    names = download(cluster.data, objects, prefix, folder / CHECKPOINTS, display)
    return [f"{CHECKPOINTS}/{name}" for name in names]
