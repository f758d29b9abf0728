"""The scaling activities of Auto Scaling groups, as DescribeScalingActivities tells them."""

import json
from typing import Any
from uuid import uuid4

from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.extension import extend

_MOST = 100  # of one page


def launched(group: Any, instance: Any) -> None:
    _record(group, f"Launching a new EC2 instance: {instance.id}", instance.subnet_id)


def terminated(group: Any, instance: Any) -> None:
    _record(group, f"Terminating EC2 instance: {instance.id}", instance.subnet_id)


def failed(group: Any, subnet: str, reason: str) -> None:
    """A launch that EC2 refused."""
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
    _all(group.autoscaling_backend).append({key: value for key, value in activity.items() if value is not None})


def _all(backend: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = vars(backend).setdefault("_activities", [])
    return found


def describe_scaling_activities(self: Any) -> ActionResult:
    """The newest first. Those of a group that is gone are told no more, as without IncludeDeletedGroups in AWS."""
    backend, name = self.autoscaling_backend, self._get_param("AutoScalingGroupName")
    if self._get_bool_param("IncludeDeletedGroups", False):
        raise NotImplementedError("the activities of groups that are gone")
    ids = self._get_param("ActivityIds", [])
    found = [
        each
        for each in reversed(_all(backend))
        if each["AutoScalingGroupName"] in backend.autoscaling_groups
        and name in (None, "", each["AutoScalingGroupName"])
        and (not ids or each["ActivityId"] in ids)
    ]
    first, most = int(self._get_param("NextToken") or 0), self._get_int_param("MaxRecords") or _MOST
    answer: dict[str, Any] = {"Activities": found[first : first + most]}
    if first + most < len(found):
        answer["NextToken"] = str(first + most)
    return ActionResult(answer)


def install() -> None:
    extend(AutoScalingResponse, describe_scaling_activities)
