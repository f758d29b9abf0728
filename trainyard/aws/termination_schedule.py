"""One-time schedules of EventBridge Scheduler that terminate the workers of a run and cancel its reservations.

The roles of nodes can change neither a schedule nor the maximum size of a group. Only the operator moves the time.
Sources: https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html#one-time
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from time import time as unix_time
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws.clients import client

RETRY_SECONDS, RETRIES = 900, 30
MIN_SECONDS = 60.0  # from now until a schedule runs: the time of a run with a shorter limit may have passed
_NO_WORKERS = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}


def put_termination_schedules(
    region: str,
    schedule_group: str,
    role_arn: str,
    time: float,
    groups: Iterable[str],
    reservations: Iterable[str] = (),
) -> None:
    """Schedule the termination of all workers of the groups and the cancellation of the reservations.

    `time`: Unix time, seconds. `schedule_group`: its name. `role_arn`: role that EventBridge Scheduler assumes. The
    maximum size of each group becomes 0: a compromised head cannot start nodes. Earlier schedules are replaced.
    """
    requests: dict[str, tuple[str, Mapping[str, Any]]] = {
        name: ("autoscaling:updateAutoScalingGroup", {"AutoScalingGroupName": name, **_NO_WORKERS}) for name in groups
    }
    for name in reservations:
        requests[name] = ("ec2:cancelCapacityReservation", {"CapacityReservationId": name})
    partition, when = role_arn.split(":")[1], max(time, unix_time() + MIN_SECONDS)
    for name, (action, request) in requests.items():
        arn = f"arn:{partition}:scheduler:::aws-sdk:{action}"
        target = {
            "Arn": arn,
            "RoleArn": role_arn,
            "Input": json.dumps(request),
            # By default AWS repeats a failed call for a day, in which the next run may have started.
            "RetryPolicy": {"MaximumEventAgeInSeconds": RETRY_SECONDS, "MaximumRetryAttempts": RETRIES},
        }
        _put(region, schedule_group, name, when, target)


def _put(region: str, schedule_group: str, name: str, time: float, target: dict[str, Any]) -> None:
    scheduler, when = client("scheduler", region), datetime.fromtimestamp(time, UTC)
    schedule: dict[str, Any] = {
        "GroupName": schedule_group,
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
