"""Capacity attempts in the report: the launches and reservations that a stack requested."""

from collections.abc import Iterable
from itertools import groupby

from rehearsal.aws.control_models import CapacityRequestRecord
from trainyard.aws import tags
from trainyard.models.report import CapacityAttempt


def capacity_attempts(requests: Iterable[CapacityRequestRecord], stack_tag: str) -> list[CapacityAttempt]:
    """Return the requests of a stack in order. Consecutive requests with the same result are one attempt."""
    of_stack = [request for request in requests if request.tags.get(tags.STACK) == stack_tag]
    return [
        CapacityAttempt(
            kind=request.kind,
            type=request.instance_type,
            zone=request.zone,
            requested=request.requested,
            granted=request.granted,
            error_code=request.error_code,
            times=len(list(repetitions)),
        )
        for request, repetitions in groupby(of_stack)
    ]
