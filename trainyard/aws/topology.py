"""The network nodes of instances, by DescribeInstanceTopology."""

from collections.abc import Mapping, Sequence

from trainyard.aws.clients import client

_MAX_IDS = 100  # of one call. API reference, DescribeInstanceTopology, InstanceId.N
_MAX_ATTEMPTS = 3  # nodes that are billed wait for the response


def describe_network_nodes(region: str, instances: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the network nodes of each running instance, from the top of the network to the bottom.

    Instances with the same lowest network node are closest. An instance type that AWS does not support has none.
    Raises ClientError or BotoCoreError after few attempts.
    """
    ec2 = client("ec2", region, _MAX_ATTEMPTS)
    batches = [instances[start : start + _MAX_IDS] for start in range(0, len(instances), _MAX_IDS)]
    described = [
        instance
        for names in batches
        for instance in ec2.describe_instance_topology(InstanceIds=list(names))["Instances"]
    ]
    return {instance["InstanceId"]: tuple(instance.get("NetworkNodes", ())) for instance in described}
