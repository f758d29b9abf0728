"""Schedules of EventBridge Scheduler that end the cost of a run at a fixed time, whatever its nodes and its head do.

The roles of nodes cannot change a schedule or the maximum size of a group. Only the operator moves the time. Sources:
https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html#one-time
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws.clients import client

_NO_WORKERS = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}


def put_deadline(
    region: str, schedules: str, role_arn: str, until: float, groups: Iterable[str], reservations: Iterable[str] = ()
) -> None:
    """Schedule the termination of all workers of the groups, and the end of the reservations, at `until`.

    `until`: Unix time, seconds. `schedules`: name of the schedule group. `role_arn`: role that the scheduler assumes. A
    group gets the maximum size 0: a head that was taken over cannot start nodes again. Replaces earlier schedules.
    """
    inputs: dict[str, tuple[str, Mapping[str, Any]]] = {
        name: ("autoscaling:updateAutoScalingGroup", {"AutoScalingGroupName": name, **_NO_WORKERS}) for name in groups
    }
    for name in reservations:
        inputs[name] = ("ec2:cancelCapacityReservation", {"CapacityReservationId": name})
    partition = role_arn.split(":")[1]
    for name, (action, request) in inputs.items():
        target = {
            "Arn": f"arn:{partition}:scheduler:::aws-sdk:{action}",
            "RoleArn": role_arn,
            "Input": json.dumps(request),
        }
        _put(region, schedules, name, until, target)


def _put(region: str, schedules: str, name: str, until: float, target: dict[str, str]) -> None:
    scheduler, when = client("scheduler", region), datetime.fromtimestamp(until, UTC)
    schedule: dict[str, Any] = {
        "GroupName": schedules,
        "Name": name,
        "ScheduleExpression": f"at({when:%Y-%m-%dT%H:%M:%S})",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": target,
    }
    try:
        scheduler.update_schedule(**schedule)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
        scheduler.create_schedule(**schedule)


def read_deadline(region: str, schedules: str, groups: Iterable[str]) -> float | None:
    """Return the latest time at which the workers of a group are terminated, Unix time; None without a schedule."""
    times = []
    for name in groups:
        try:
            schedule = client("scheduler", region).get_schedule(GroupName=schedules, Name=name)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise
        else:
            when = datetime.strptime(schedule["ScheduleExpression"], "at(%Y-%m-%dT%H:%M:%S)")
            times.append(when.replace(tzinfo=UTC).timestamp())
    return max(times, default=None)


def delete_deadline(region: str, schedules: str) -> None:
    """Delete all schedules of a stack, whose workers and reservations have ended. `schedules`: the schedule group."""
    scheduler = client("scheduler", region)
    try:
        pages = list(scheduler.get_paginator("list_schedules").paginate(GroupName=schedules))
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
        return
    for name in [each["Name"] for page in pages for each in page["Schedules"]]:
        scheduler.delete_schedule(GroupName=schedules, Name=name)
