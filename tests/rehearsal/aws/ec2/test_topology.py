"""DescribeInstanceTopology."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.ec2.topology import network_nodes
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import launch, terminate_all


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws, client: Client) -> Iterator[None]:
    terminate_all(aws, client)
    yield
    aws.set_timing(Timing())
    terminate_all(aws, client)


def topology(client: Client, **parameters: Any) -> dict[str, list[str]]:
    """Return instance -> network nodes."""
    instances = client("ec2").describe_instance_topology(**parameters)["Instances"]
    return {each["InstanceId"]: each.get("NetworkNodes", []) for each in instances}


@pytest.mark.parametrize(
    ("instance_type", "layers"),
    [("p4d.24xlarge", 3), ("p5en.48xlarge", 3), ("g6e.xlarge", 3), ("t3.medium", 0)],
)
def test_number_of_layers_depends_on_the_instance_type(
    client: Client, network: Network, instance_type: str, layers: int
) -> None:
    (name,) = launch(client, network, InstanceType=instance_type)
    assert len(topology(client, InstanceIds=[name])[name]) == layers


def test_b200_instances_have_four_layers() -> None:
    instance = SimpleNamespace(id="i-1", instance_type="p6-b200.48xlarge", state="running", availability_zone="z")
    assert len(network_nodes(instance)) == 4


def test_nodes_are_a_tree_with_the_top_first(client: Client, network: Network) -> None:
    nodes = list(topology(client, InstanceIds=launch(client, network, count=12, InstanceType="p4d.24xlarge")).values())
    assert len({top for top, _, _ in nodes}) == 1
    assert len({middle for _, middle, _ in nodes}) > 1
    parents = {(bottom, middle) for _, middle, bottom in nodes}
    assert len({bottom for bottom, _ in parents}) == len(parents)


def test_pending_instances_have_no_nodes(aws: EmulatedAws, client: Client, network: Network) -> None:
    aws.set_timing(Timing(pending_seconds=60.0))
    (name,) = launch(client, network, InstanceType="p4d.24xlarge")
    assert topology(client, InstanceIds=[name]) == {name: []}
    aws.advance_clock(60.0)
    assert len(topology(client, InstanceIds=[name])[name]) == 3


def test_instances_are_described_in_pages(client: Client, network: Network) -> None:
    names = launch(client, network, count=5, InstanceType="g5.12xlarge")
    filters = [{"Name": "instance-type", "Values": ["g5.12xlarge"]}]
    pages = list(client("ec2").get_paginator("describe_instance_topology").paginate(MaxResults=2, Filters=filters))
    assert [len(page["Instances"]) for page in pages] == [2, 2, 1]
    assert sorted(each["InstanceId"] for page in pages for each in page["Instances"]) == sorted(names)


def test_filters_accept_wildcards(client: Client, network: Network) -> None:
    (large,), (small,) = (launch(client, network, InstanceType=name) for name in ("p4d.24xlarge", "t3.medium"))
    of_large = set(topology(client, Filters=[{"Name": "instance-type", "Values": ["p4*"]}]))
    in_zones = set(topology(client, Filters=[{"Name": "availability-zone", "Values": ["us-east-1?"]}]))
    assert large in of_large
    assert small not in of_large
    assert {large, small} <= in_zones
    assert topology(client, Filters=[{"Name": "availability-zone", "Values": ["us-east-1z"]}]) == {}


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"InstanceIds": [f"i-{number:017x}" for number in range(101)]}, "InvalidParameterValue"),
        ({"InstanceIds": ["i-0123456789abcdef0"], "MaxResults": 5}, "InvalidParameterCombination"),
        ({"InstanceIds": ["i-0123456789abcdef0"]}, "InvalidInstanceID.NotFound"),
        ({"Filters": [{"Name": "state", "Values": ["running"]}]}, "InvalidParameterValue"),
    ],
)
def test_invalid_requests_are_refused(client: Client, network: Network, parameters: Any, code: str) -> None:
    launch(client, network)
    with pytest.raises(ClientError) as error:
        client("ec2").describe_instance_topology(**parameters)
    assert error.value.response["Error"]["Code"] == code
