"""The lease: a scheduled action that terminates a group's workers. The launch creates it, the controller renews it."""

from collections.abc import Iterable
from datetime import UTC, datetime

from trainyard.aws.clients import client

LEASE = "trainyard-lease"


def put_lease(region: str, groups: Iterable[str], until: float) -> None:
    """Schedule the termination of all workers of the groups at `until` (Unix time, seconds).

    AWS runs the action even when the operator's process and the controller no longer run. Replaces an earlier lease.
    """
    for name in groups:
        client("autoscaling", region).put_scheduled_update_group_action(
            AutoScalingGroupName=name,
            ScheduledActionName=LEASE,
            StartTime=datetime.fromtimestamp(until, UTC),
            MinSize=0,
            DesiredCapacity=0,
        )


def read_lease(region: str, groups: Iterable[str]) -> float | None:
    """Return the earliest end of the groups' leases, Unix time in seconds; None when no group has a lease."""
    autoscaling = client("autoscaling", region)
    actions = [
        action
        for name in groups
        for action in autoscaling.describe_scheduled_actions(AutoScalingGroupName=name, ScheduledActionNames=[LEASE])[
            "ScheduledUpdateGroupActions"
        ]
    ]
    return min((float(action["StartTime"].timestamp()) for action in actions), default=None)
