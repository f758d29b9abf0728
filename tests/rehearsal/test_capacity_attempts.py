"""The requests for capacity in the report."""

from rehearsal.aws.control_models import CapacityRequestRecord
from rehearsal.capacity_attempts import capacity_attempts
from trainyard.aws import tags


def request(granted: int, stack: str = "a") -> CapacityRequestRecord:
    """Return a request for two instances."""
    return CapacityRequestRecord(
        kind="reservation",
        instance_type="p4d.24xlarge",
        zone="us-east-1a",
        requested=2,
        granted=granted,
        error_code=None if granted else "InsufficientInstanceCapacity",
        tags={tags.STACK: stack},
    )


def test_consecutive_requests_with_the_same_result_are_one_attempt() -> None:
    attempts = capacity_attempts([request(0), request(0), request(2), request(0)], "a")
    assert [(attempt.granted, attempt.times) for attempt in attempts] == [(0, 2), (2, 1), (0, 1)]


def test_requests_of_other_stacks_are_omitted() -> None:
    assert capacity_attempts([request(2, stack="b")], "a") == []
