"""How a group is asked for nodes, by each of the ways that AWS has: what came of it, and why not the rest."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from trainyard.models.manifest import WorkerGroup
from trainyard.operations.progress import Display

# LaunchInstances takes at most 100 instances a call.
INSTANCES_PER_CALL = 100
# What a desired capacity asks for is a Capacity Block's, paid for already: waiting costs nothing. Auto Scaling tries a
# refused launch again after a minute or two, so that this holds several tries; it would go on for most of an hour.
CAPACITY_SECONDS = 5 * 60.0
POLL_SECONDS = 2.0


@dataclass(frozen=True)
class Came:
    """Nodes that one group was given, and AWS's reasons where these are too few."""

    nodes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def why(self) -> str:
        return "; ".join(self.reasons) or "AWS gave no reason"


def launch_instances(autoscaling: Any, group: WorkerGroup, wanted: int, token: str) -> Came:
    """Auto Scaling's synchronous LaunchInstances: it says at once what it got. `autoscaling` is a boto3 client.

    `token` makes the calls idempotent: another launch has another one.
    """
    nodes: list[str] = []
    while len(nodes) < wanted:
        count = min(INSTANCES_PER_CALL, wanted - len(nodes))
        # A token has 64 characters at most, fewer than its parts may have.
        parts = f"{token} {group.autoscaling_group} {len(nodes)}"
        try:
            answer = autoscaling.launch_instances(
                AutoScalingGroupName=group.autoscaling_group,
                RequestedCapacity=count,
                SubnetIds=[group.subnets[0]],
                ClientToken=hashlib.sha256(parts.encode()).hexdigest(),
                RetryStrategy="none",
            )
        except ClientError as error:
            return Came(nodes, [_refusal(error)])
        started = [name for part in answer.get("Instances", []) for name in part["InstanceIds"]]
        nodes += started
        if len(started) < count:
            return Came(
                nodes,
                [
                    f"{one['ErrorCode']} in {one.get('AvailabilityZone', 'the group')}: {one.get('ErrorMessage', '')}"
                    for one in answer.get("Errors", [])
                ],
            )
    return Came(nodes)


def raise_desired(
    autoscaling: Any, group: WorkerGroup, desired: int, wanted: int, new: Callable[[], list[str]], show: Display
) -> Came:
    """The group's desired capacity, from `desired` up by `wanted`, for what LaunchInstances does not reach.

    Waits for the members that `new` then tells, as long as CAPACITY_SECONDS.
    """
    name = group.autoscaling_group
    known = {one["ActivityId"] for one in _activities(autoscaling, name)}
    try:
        autoscaling.set_desired_capacity(
            AutoScalingGroupName=name, DesiredCapacity=desired + wanted, HonorCooldown=False
        )
    except ClientError as error:
        return Came(reasons=[_refusal(error)])
    until = time.monotonic() + CAPACITY_SECONDS
    while True:
        nodes = new()
        if len(nodes) >= wanted:
            return Came(nodes)
        failures = [
            one.get("StatusMessage", one.get("Description", one["StatusCode"]))
            for one in reversed(_activities(autoscaling, name))
            if one["ActivityId"] not in known and one["StatusCode"] in {"Failed", "Cancelled"}
        ]
        reasons = list(dict.fromkeys(failures))
        for reason in reasons:
            show.line(group.name, reason)
        if time.monotonic() > until:
            late = f"no more came to {name} within {CAPACITY_SECONDS / 60:g} minutes"
            return Came(nodes, [*reasons, late])
        show.detail(group.name, f"{len(nodes)} of {wanted} nodes")
        time.sleep(POLL_SECONDS)


def _activities(autoscaling: Any, group: str) -> list[dict[str, Any]]:
    """The group's latest scaling activities, the newest first."""
    answer = autoscaling.describe_scaling_activities(AutoScalingGroupName=group, MaxRecords=100)
    found: list[dict[str, Any]] = answer["Activities"]
    return found


def _refusal(error: ClientError) -> str:
    return f"{error.response['Error']['Code']} in the group: {error}"
