"""Scaling activities of Auto Scaling groups, for DescribeScalingActivities."""

import json
from typing import Any
from uuid import uuid4

from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.moto_extension import extend

_MAXIMUM_RECORDS = 100  # per page


def record_launch(group: Any, instance: Any) -> None:
    """Record the launch of a group's instance."""
    _record(group, f"Launching a new EC2 instance: {instance.id}", instance.subnet_id)


def record_termination(group: Any, instance: Any) -> None:
    """Record the termination of a group's instance."""
    _record(group, f"Terminating EC2 instance: {instance.id}", instance.subnet_id)


def record_failed_launch(group: Any, subnet: str, reason: str) -> None:
    """Record a launch that EC2 rejected with `reason`."""
    message = f"{reason} Launching EC2 instance failed."
    _record(group, f"Launching a new EC2 instance.  Status Reason: {message}", subnet, message)


def _record(group: Any, description: str, subnet_id: str, failure: str | None = None) -> None:
    subnet = group.ec2_backend.get_subnet(subnet_id)
    activity = {
        "ActivityId": str(uuid4()),
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": group.arn,
        "AutoScalingGroupState": None,
        "Description": description,
        "Cause": f"At {CLOCK.utc():%Y-%m-%dT%H:%M:%SZ} the group's desired and actual capacity differed.",
        "StartTime": CLOCK.utc(),
        "EndTime": CLOCK.utc(),
        "StatusCode": "Failed" if failure else "Successful",
        "StatusMessage": failure,
        "Progress": 100,
        "Details": json.dumps({"Subnet ID": subnet_id, "Availability Zone": subnet.availability_zone}),
    }
    _activities(group.autoscaling_backend).append({key: value for key, value in activity.items() if value is not None})


def _activities(backend: Any) -> list[dict[str, Any]]:
    activities: list[dict[str, Any]] = vars(backend).setdefault("_activities", [])
    return activities


def describe_scaling_activities(self: Any) -> ActionResult:
    """Return activities, newest first, without those of deleted groups, as AWS does without IncludeDeletedGroups."""
    backend, name = self.autoscaling_backend, self._get_param("AutoScalingGroupName")
    if self._get_bool_param("IncludeDeletedGroups", False):
        raise NotImplementedError("DescribeScalingActivities with IncludeDeletedGroups")
    ids = self._get_param("ActivityIds", [])
    activities = [
        activity
        for activity in reversed(_activities(backend))
        if activity["AutoScalingGroupName"] in backend.autoscaling_groups
        and name in (None, "", activity["AutoScalingGroupName"])
        and (not ids or activity["ActivityId"] in ids)
    ]
    start, page_size = int(self._get_param("NextToken") or 0), self._get_int_param("MaxRecords") or _MAXIMUM_RECORDS
    result: dict[str, Any] = {"Activities": activities[start : start + page_size]}
    if start + page_size < len(activities):
        result["NextToken"] = str(start + page_size)
    return ActionResult(result)


def install() -> None:
    """Add DescribeScalingActivities to moto."""
    extend(AutoScalingResponse, describe_scaling_activities)
