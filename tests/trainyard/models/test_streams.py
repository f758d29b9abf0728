"""Readers of chunked streams: each line once, in order, and the latest attempt counts."""

from tests.clusters import event_fields
from tests.metrics import metric
from trainyard.aws.s3 import Bucket
from trainyard.models.events import PlaybookEvent
from trainyard.models.layout import RunLayout, chunk_key, chunk_prefix
from trainyard.models.streams import Cursor, metric_lines, node_events


def test_cursor_yields_each_line_once(bucket: Bucket) -> None:
    prefix = chunk_prefix("runs/r/events/", "i-1", "0001", "agent")
    cursor = Cursor(bucket, "runs/r/events/")
    bucket.write(chunk_key(prefix, 0), b"a\nb\n")
    assert [line for _, line in cursor.lines()] == [b"a", b"b"]
    bucket.write(chunk_key(prefix, 1), b"c\n")
    assert [line for _, line in cursor.lines()] == [b"c"]


def event(instance: str) -> bytes:
    fields = {**event_fields(instance, "worker"), "kind": "playbook", "status": "ok", "message": ""}
    return PlaybookEvent.model_validate(fields).model_dump_json().encode()


def metric_line(attempt: int, step: int, loss: float) -> bytes:
    return metric(step, loss, attempt=attempt).model_dump_json().encode() + b"\n"


def test_metric_lines_use_the_latest_attempt_of_a_step(bucket: Bucket) -> None:
    stream = RunLayout("r").metrics
    bucket.write(f"{stream}i-1/0001/0001-metrics-00000000.jsonl", metric_line(1, 1, 5.0) + metric_line(1, 2, 4.0))
    bucket.write(f"{stream}i-2/0001/0002-metrics-00000000.jsonl", metric_line(2, 2, 3.0) + metric_line(2, 3, 2.0))
    assert [(line.step, line.loss) for line in metric_lines(bucket, "r")] == [(1, 5.0), (2, 3.0), (3, 2.0)]


def test_invalid_metric_lines_of_a_job_are_ignored(bucket: Bucket) -> None:
    lines = b'{"step": "\x1b]52;"}\n' + b"[" * 10_000 + b"\n" + metric_line(1, 1, 5.0)
    bucket.write(f"{RunLayout('r').metrics}i-1/0001/0001-metrics-00000000.jsonl", lines)
    assert [line.loss for line in metric_lines(bucket, "r")] == [5.0]


def stored_events(bucket: Bucket, instance: str, *lines: bytes) -> list[str]:
    """Instances of the events that are read after a node has written these lines."""
    events = RunLayout("r").events
    bucket.write(chunk_key(chunk_prefix(events, instance, "0001", "agent"), 0), b"\n".join(lines))
    return [event.instance for event in node_events(Cursor(bucket, events))]


def test_invalid_events_of_a_node_are_ignored(bucket: Bucket) -> None:
    assert stored_events(bucket, "i-1", b"{}", b"no JSON", event("i-1")) == ["i-1"]


def test_a_node_reports_no_events_of_another_node(bucket: Bucket) -> None:
    assert stored_events(bucket, "i-2", event("i-1"), event("i-2")) == ["i-2"]
