"""Launch the nodes of one worker group: by LaunchInstances, or by the desired capacity of its Auto Scaling group."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from botocore.exceptions import ClientError

from trainyard.aws import autoscaling
from trainyard.models.manifest import WorkerGroup
from trainyard.operations.progress import Display
from trainyard.operations.scaling_activities import set_desired_capacity
from trainyard.quantity import quantity

# Only for a Capacity Block or an interruptible reservation, which is paid for, used or not: waiting costs nothing. Auto
# Scaling retries a refused launch after one or two minutes, so that this time includes several retries.
CAPACITY_TIMEOUT_SECONDS = 5 * 60.0
POLL_SECONDS = 2.0


@dataclass(frozen=True)
class LaunchedNodes:
    """The instances that AWS launched in one group, and AWS's reasons when they are fewer than requested.

    `counts`: instance type -> number of instances.
    """

    nodes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def reason(self) -> str:
        """All reasons as one text."""
        return "; ".join(reason.rstrip(".") for reason in self.reasons) or "AWS reports no reason"


def launch_instances(region: str, group: WorkerGroup, subnet: str, count: int, token: str) -> LaunchedNodes:
    """Launch `count` nodes with Auto Scaling's LaunchInstances, which reports the launched instances synchronously.

    `token` makes the calls idempotent; each launch has its own.
    """
    nodes: list[str] = []
    counts: Counter[str] = Counter()
    while len(nodes) < count:
        call_count = min(autoscaling.MAX_INSTANCES_PER_CALL, count - len(nodes))
        # A client token has at most 64 characters; its parts may have more.
        parts = f"{token} {group.autoscaling_group} {subnet} {len(nodes)}"
        call_token = hashlib.sha256(parts.encode()).hexdigest()
        try:
            response = autoscaling.launch_instances(region, group.autoscaling_group, subnet, call_count, call_token)
        except ClientError as error:
            return LaunchedNodes(nodes, [_describe_error(error)], counts)
        pools = response.get("Instances", [])
        launched = [name for pool in pools for name in pool["InstanceIds"]]
        nodes += launched
        counts.update({pool["InstanceType"]: len(pool["InstanceIds"]) for pool in pools})
        if len(launched) < call_count:
            reasons = [
                f"{error['ErrorCode']} in {error.get('AvailabilityZone', 'the group')}: {error.get('ErrorMessage', '')}"
                for error in response.get("Errors", [])
            ]
            return LaunchedNodes(nodes, reasons, counts)
    return LaunchedNodes(nodes, counts=counts)


def increase_desired_capacity(
    region: str, group: WorkerGroup, current: int, count: int, new_nodes: Callable[[], list[str]], display: Display
) -> LaunchedNodes:
    """Increase the group's desired capacity from `current` by `count`: LaunchInstances does not support its capacity.

    Waits at most CAPACITY_TIMEOUT_SECONDS for the members that `new_nodes` returns.
    """
    name = group.autoscaling_group
    earlier_activities = {activity["ActivityId"] for activity in autoscaling.describe_activities(region, name)}
    deadline = time.monotonic() + CAPACITY_TIMEOUT_SECONDS
    try:
        set_desired_capacity(region, name, current + count, display, deadline)
    except ClientError as error:
        return LaunchedNodes(reasons=[_describe_error(error)])
    while True:
        nodes = new_nodes()
        if len(nodes) >= count:
            return LaunchedNodes(nodes)
        failures = [
            activity.get("StatusMessage", activity.get("Description", activity["StatusCode"]))
            for activity in reversed(autoscaling.describe_activities(region, name))
            if activity["ActivityId"] not in earlier_activities and activity["StatusCode"] in {"Failed", "Cancelled"}
        ]
        reasons = list(dict.fromkeys(failures))
        for reason in reasons:
            display.line(group.name, reason)
        if time.monotonic() > deadline:
            minutes = quantity(CAPACITY_TIMEOUT_SECONDS / 60, "minute")
            timeout = f"group {name} had {len(nodes)} of {quantity(count, 'node')} after {minutes}"
            return LaunchedNodes(nodes, [*reasons, timeout])
        display.detail(group.name, f"{len(nodes)} of {quantity(count, 'node')}")
        time.sleep(POLL_SECONDS)


def _describe_error(error: ClientError) -> str:
    return f"{error.response['Error']['Code']} in the group: {error}"
