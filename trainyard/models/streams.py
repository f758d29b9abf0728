"""Readers of chunked streams in S3 (`events/`, `metrics/`, `logs/`): a cursor that yields each line once."""

from collections.abc import Iterator

from trainyard.aws.s3 import Bucket
from trainyard.models.events import NODE_EVENT, NodeEvent
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import MetricLine


class Cursor:
    """Reads each chunk under `prefix` once. Chunks of one writer are in order; chunks of several writers interleave."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._read_keys: set[str] = set()

    def skip_existing(self) -> None:
        """Ignore all chunks that exist now."""
        self._read_keys.update(self._bucket.keys(self._prefix))

    def lines(self, folder: str = "") -> Iterator[tuple[str, bytes]]:
        """(key, line) of each line that was written since the last call. `folder`: only keys that start so below it."""
        for key in self._bucket.keys(self._prefix + folder):
            if key in self._read_keys:
                continue
            content = self._bucket.read(key)
            self._read_keys.add(key)
            for line in content.splitlines():
                if line.strip():
                    yield key, line


def node_events(cursor: Cursor, instance: str | None = None) -> Iterator[NodeEvent]:
    """Events that nodes, or this node, reported since the last call. Raises ValidationError for any other line."""
    for _, line in cursor.lines("" if instance is None else f"{instance}/"):
        yield NODE_EVENT.validate_json(line)


def metric_lines(bucket: Bucket, run: str) -> list[MetricLine]:
    """Metrics of a run, one line per step. If an attempt repeats a step, the line of the later attempt counts."""
    lines: dict[int, MetricLine] = {}
    for _, line in Cursor(bucket, RunLayout(run).metrics).lines():
        metric = MetricLine.model_validate_json(line)
        if metric.step not in lines or metric.attempt >= lines[metric.step].attempt:
            lines[metric.step] = metric
    return [lines[step] for step in sorted(lines)]
