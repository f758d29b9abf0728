"""Readers of chunked streams: each line once, in order, and the latest attempt counts."""

from tests.metrics import metric
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import RunLayout, chunk_key, chunk_prefix
from trainyard.models.streams import Cursor, metric_lines


def test_cursor_yields_each_line_once(bucket: Bucket) -> None:
    prefix = chunk_prefix("runs/r/events/", "i-1", "0001", "agent")
    cursor = Cursor(bucket, "runs/r/events/")
    bucket.write(chunk_key(prefix, 0), b"a\nb\n")
    assert [line for _, line in cursor.lines()] == [b"a", b"b"]
    bucket.write(chunk_key(prefix, 1), b"c\n")
    assert [line for _, line in cursor.lines()] == [b"c"]


def metric_line(attempt: int, step: int, loss: float) -> bytes:
    return metric(step, loss, attempt=attempt).model_dump_json().encode() + b"\n"


def test_metric_lines_use_the_latest_attempt_of_a_step(bucket: Bucket) -> None:
    stream = RunLayout("r").metrics
    bucket.write(f"{stream}i-1/0001/0001-metrics-00000000.jsonl", metric_line(1, 1, 5.0) + metric_line(1, 2, 4.0))
    bucket.write(f"{stream}i-2/0001/0002-metrics-00000000.jsonl", metric_line(2, 2, 3.0) + metric_line(2, 3, 2.0))
    assert [(line.step, line.loss) for line in metric_lines(bucket, "r")] == [(1, 5.0), (2, 3.0), (3, 2.0)]
