"""How numbered chunks are read: a cursor over a stream (`events/`, `metrics/`, `logs/`) that yields each line once."""

from collections.abc import Iterator

from trainyard.aws.s3 import Bucket
from trainyard.models.events import NODE_EVENT, NodeEvent
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import MetricLine


class Cursor:
    """Reads each chunk under `prefix` once. Chunks of one writer come in order; writers interleave."""

    def __init__(self, store: Bucket, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._seen: set[str] = set()

    def skip(self) -> None:
        """Leave out all that is there by now."""
        self._seen.update(self._store.keys(self._prefix))

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """(key, line) of every line that came since the last call."""
        for key in self._store.keys(self._prefix):
            if key in self._seen:
                continue
            content = self._store.read(key)
            self._seen.add(key)
            for line in content.splitlines():
                if line.strip():
                    yield key, line


def node_events(cursor: Cursor) -> Iterator[NodeEvent]:
    """What nodes told since the last call. Raises ValidationError for a line that is no event."""
    for _, line in cursor.lines():
        yield NODE_EVENT.validate_json(line)


def metric_lines(store: Bucket, run: str) -> list[MetricLine]:
    """A run's metrics, one line a step: where a resumed attempt repeats a step, the later attempt's line counts."""
    found: dict[int, MetricLine] = {}
    for _, line in Cursor(store, RunLayout(run).metrics).lines():
        metric = MetricLine.model_validate_json(line)
        if metric.step not in found or metric.attempt >= found[metric.step].attempt:
            found[metric.step] = metric
    return [found[step] for step in sorted(found)]
