"""Readers of chunked streams in S3 (`events/`, `metrics/`, `logs/`): a cursor that yields each line once.

A job writes metrics and logs, and a node writes events: a line that is not valid is logged and ignored, so that a
node cannot stop the controller or a command.
"""

import logging
from collections.abc import Iterator

from pydantic import ValidationError

from trainyard.aws.s3 import Bucket
from trainyard.models.events import NODE_EVENT, NodeEvent
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import MetricLine

LOG = logging.getLogger("streams")


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
    """Events that nodes, or this node, reported since the last call. A node reports its own events only."""
    for key, line in cursor.lines("" if instance is None else f"{instance}/"):
        try:
            event = NODE_EVENT.validate_json(line)
        except ValidationError as error:
            LOG.warning("an event in %s is ignored: %s", key, error)
            continue
        if event.instance in key.split("/"):
            yield event
        else:
            LOG.warning("an event in %s is ignored: it names the node %s", key, event.instance)


def new_metrics(cursor: Cursor) -> Iterator[MetricLine]:
    """Metrics that jobs have written since the last call."""
    for key, line in cursor.lines():
        try:
            yield MetricLine.model_validate_json(line)
        except ValidationError as error:
            LOG.warning("a metric line in %s is ignored: %s", key, error)


def metric_lines(bucket: Bucket, run: str) -> list[MetricLine]:
    """Metrics of a run, one line per step. If an attempt repeats a step, the line of the later attempt counts."""
    lines: dict[int, MetricLine] = {}
    for metric in new_metrics(Cursor(bucket, RunLayout(run).metrics)):
        if metric.step not in lines or metric.attempt >= lines[metric.step].attempt:
            lines[metric.step] = metric
    return [lines[step] for step in sorted(lines)]
