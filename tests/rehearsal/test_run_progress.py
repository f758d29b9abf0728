"""Progress lines of a rehearsal about the attempts of its run."""

from rehearsal.run_progress import AttemptLines
from trainyard.aws.s3 import Bucket
from trainyard.models.decision import AttemptStart
from trainyard.models.layout import RunLayout
from trainyard.node.controller.failure_analysis import AttemptFailure, decide


def test_starts_and_failures_of_attempts_are_reported_once(bucket: Bucket) -> None:
    layout = RunLayout("r")
    lines = AttemptLines(bucket, layout)
    assert lines.new_lines() == []

    def start(attempt: int, *nodes: str) -> None:
        record = AttemptStart(attempt=attempt, time=10.0 * attempt, nodes=nodes, run_nodes=2)
        bucket.write(layout.attempt_start(attempt), record.model_dump_json().encode())

    start(1, "i-1", "i-2")
    assert lines.new_lines() == ["attempt 1 started on 2 nodes; i-1, i-2"]
    failure = AttemptFailure(attempt=1, time=15.0, nodes=("i-1", "i-2"), departed=["i-2"])
    bucket.write(layout.decision(1), decide(failure, ()).model_dump_json().encode())
    start(2, "i-1", "i-3")
    assert lines.new_lines() == [
        "attempt 1 failed: fault of a node, which does not count against the job; next: another attempt",
        "attempt 2 started on 2 nodes; without i-2; with i-3",
    ]
    assert lines.new_lines() == []
