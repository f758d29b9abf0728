"""Durations of AWS operations against the timeouts of the commands that wait for them.

Rehearsals shorten the durations and not the timeouts, so that no rehearsal finds a timeout that is too short.
"""

import pytest

from infra.components.workers import HEARTBEAT_SECONDS
from rehearsal.profiles import AWS_TIMING
from trainyard.operations import pending_reservations, reservations, scaling_activities, stop

PENDING_SECONDS = AWS_TIMING.large_gpu_pending_seconds or 0.0
SHUTTING_DOWN_SECONDS = AWS_TIMING.large_gpu_shutting_down_seconds or 0.0
RETURN_SECONDS = AWS_TIMING.reserved_capacity_return_seconds


@pytest.mark.parametrize(
    ("timeout_seconds", "aws_seconds"),
    [
        pytest.param(scaling_activities.LAUNCH_TIMEOUT_SECONDS, PENDING_SECONDS, id="rollback"),
        pytest.param(stop.STOP_TIMEOUT_SECONDS, HEARTBEAT_SECONDS + SHUTTING_DOWN_SECONDS, id="stop"),
        pytest.param(
            reservations.RETURN_TIMEOUT_SECONDS,
            HEARTBEAT_SECONDS + SHUTTING_DOWN_SECONDS + RETURN_SECONDS,
            id="capacity-of-terminated-nodes",
        ),
        pytest.param(
            pending_reservations.TIMEOUT_SECONDS, AWS_TIMING.reservation_pending_seconds, id="pending-reservation"
        ),
    ],
)
def test_timeout_is_longer_than_the_operation_on_aws(timeout_seconds: float, aws_seconds: float) -> None:
    assert timeout_seconds > 1.4 * aws_seconds
