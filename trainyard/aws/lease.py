"""The lease: a one-off scheduled action that ends a group's workers. The launch puts it, the controller moves it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

LEASE = "trainyard-lease"


def put_lease(autoscaling: Any, groups: Iterable[str], until: float) -> None:
    """Let AWS itself end the groups' workers at `until` (Unix time, seconds), whoever dies before.

    Moves an earlier lease. `autoscaling` is a boto3 client.
    """
    for name in groups:
        autoscaling.put_scheduled_update_group_action(
            AutoScalingGroupName=name,
            ScheduledActionName=LEASE,
            StartTime=datetime.fromtimestamp(until, UTC),
            MinSize=0,
            DesiredCapacity=0,
        )


def lease_of(autoscaling: Any, groups: Iterable[str]) -> float | None:
    """When the lease ends the first of the groups' workers, Unix time in seconds; None where there is none."""
    actions = [
        action
        for name in groups
        for action in autoscaling.describe_scheduled_actions(AutoScalingGroupName=name, ScheduledActionNames=[LEASE])[
            "ScheduledUpdateGroupActions"
        ]
    ]
    return min((float(action["StartTime"].timestamp()) for action in actions), default=None)
