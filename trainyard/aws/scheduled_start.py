"""The scheduled start of a run: a scheduled action of each worker group launches its nodes at a later time.

The Auto Scaling user guide recommends this for Capacity Blocks ("Use Capacity Blocks for machine learning workloads").
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws.clients import client

SCHEDULED_START = "trainyard-start"


def put_scheduled_start(region: str, nodes: Mapping[str, int], start: float) -> None:
    """Schedule the launch of nodes at `start` (Unix time, seconds). `nodes`: Auto Scaling group -> number.

    Replaces an earlier scheduled start. Raises ClientError when `start` is in the past.
    """
    for name, count in nodes.items():
        client("autoscaling", region).put_scheduled_update_group_action(
            AutoScalingGroupName=name,
            ScheduledActionName=SCHEDULED_START,
            StartTime=datetime.fromtimestamp(math.ceil(start), UTC),
            DesiredCapacity=count,
        )


def read_scheduled_start(region: str, groups: Iterable[str]) -> float | None:
    """Return the earliest scheduled start of the groups, Unix time in seconds; None when no group has one."""
    starts = (float(action["StartTime"].timestamp()) for name in groups for action in _describe(region, name))
    return min(starts, default=None)


def cancel_scheduled_start(region: str, groups: Iterable[str]) -> bool:
    """Delete the scheduled starts of the groups; return whether a group had one."""
    cancelled = False
    for name in groups:
        for _ in _describe(region, name):
            cancelled = _delete(region, name) or cancelled
    return cancelled


def _describe(region: str, group: str) -> list[dict[str, Any]]:
    """Return the scheduled action in a list; empty without it, and when the group does not exist any more."""
    try:
        response = client("autoscaling", region).describe_scheduled_actions(
            AutoScalingGroupName=group, ScheduledActionNames=[SCHEDULED_START]
        )
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":
            return []
        raise
    actions: list[dict[str, Any]] = response["ScheduledUpdateGroupActions"]
    return actions


def _delete(region: str, group: str) -> bool:
    """Delete the scheduled action; False when it has run or another process has deleted it."""
    try:
        client("autoscaling", region).delete_scheduled_action(
            AutoScalingGroupName=group, ScheduledActionName=SCHEDULED_START
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ValidationError" or _describe(region, group):
            raise
        return False
    return True
