"""The state of instances and of their status checks, as EC2 reports it."""

from collections.abc import Iterable, Iterator
from typing import Any

from trainyard.aws.clients import client

_IDS_PER_CALL = 100
_RUNNING = ("pending", "running")


def find_impaired_instances(region: str, instances: Iterable[str]) -> dict[str, str]:
    """Return instance -> reason, for those that do not run any more, or whose status checks fail.

    EC2 repeats a status check every minute (EC2 user guide, "Status checks for Amazon EC2 instances"). Instances that
    EC2 does not describe are omitted.
    """
    reasons: dict[str, str] = {}
    for status in _describe(region, instances):
        state = status["InstanceState"]["Name"]
        failed = [name for name in ("InstanceStatus", "SystemStatus") if status[name]["Status"] == "impaired"]
        if state not in _RUNNING:
            reasons[status["InstanceId"]] = f"EC2 reports the state {state}"
        elif failed:
            reasons[status["InstanceId"]] = f"EC2 reports {' and '.join(failed)} impaired"
    return reasons


def running_instances(region: str, instances: Iterable[str]) -> set[str]:
    """Return those of the instances that are pending or running."""
    statuses = _describe(region, instances)
    return {status["InstanceId"] for status in statuses if status["InstanceState"]["Name"] in _RUNNING}


def _describe(region: str, instances: Iterable[str]) -> Iterator[dict[str, Any]]:
    ids = list(instances)
    for start in range(0, len(ids), _IDS_PER_CALL):
        batch = ids[start : start + _IDS_PER_CALL]
        yield from client("ec2", region).describe_instance_status(InstanceIds=batch, IncludeAllInstances=True)[
            "InstanceStatuses"
        ]
