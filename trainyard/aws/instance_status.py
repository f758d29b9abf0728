"""The state of instances and of their status checks, as EC2 reports it."""

from collections.abc import Iterable

from trainyard.aws.clients import client

_IDS_PER_CALL = 100


def find_impaired_instances(region: str, instances: Iterable[str]) -> dict[str, str]:
    """Return instance -> reason, for those that do not run any more, or whose status checks fail.

    EC2 repeats a status check every minute (EC2 user guide, "Status checks for Amazon EC2 instances"). Instances that
    EC2 does not describe are omitted.
    """
    reasons: dict[str, str] = {}
    ids = list(instances)
    for start in range(0, len(ids), _IDS_PER_CALL):
        batch = ids[start : start + _IDS_PER_CALL]
        response = client("ec2", region).describe_instance_status(InstanceIds=batch, IncludeAllInstances=True)
        for status in response["InstanceStatuses"]:
            state = status["InstanceState"]["Name"]
            failed = [name for name in ("InstanceStatus", "SystemStatus") if status[name]["Status"] == "impaired"]
            if state not in ("pending", "running"):
                reasons[status["InstanceId"]] = f"EC2 reports the state {state}"
            elif failed:
                reasons[status["InstanceId"]] = f"EC2 reports {' and '.join(failed)} impaired"
    return reasons
