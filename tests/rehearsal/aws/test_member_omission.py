"""The fault `member-omission`: some responses of DescribeAutoScalingGroups and DescribeInstances are incomplete."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import MemberOmission
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.autoscaling.test_lifecycle import members
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.test_faults import ids_of, launch, visible_instances


@pytest.fixture
def three_nodes(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> Iterator[tuple[str, set[str]]]:
    """A group with three members, and their ids; every second response is incomplete."""
    name = group()
    ids = set(ids_of(launch(client, name, 3)))
    aws.inject(MemberOmission(every=2))
    yield name, ids
    aws.clear_faults()


@pytest.mark.parametrize("service", ["autoscaling", "ec2"])
def test_every_second_response_omits_another_member(
    client: Client, three_nodes: tuple[str, set[str]], service: str
) -> None:
    name, ids = three_nodes

    def described() -> set[str]:
        if service == "autoscaling":
            return set(members(client, name))
        return {instance["InstanceId"] for instance in visible_instances(client, name)}

    responses = [described() for _ in range(6)]
    assert [len(response) for response in responses] == [3, 2, 3, 2, 3, 2]
    assert {node for response in responses for node in ids - response} == ids


def test_omitted_instance_has_an_invalid_id(client: Client, three_nodes: tuple[str, set[str]]) -> None:
    node = min(three_nodes[1])
    client("ec2").describe_instances(InstanceIds=[node])
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        client("ec2").describe_instances(InstanceIds=[node])


def test_omitted_member_remains_in_its_group(
    client: Client, aws: EmulatedAws, three_nodes: tuple[str, set[str]]
) -> None:
    name, ids = three_nodes
    for _ in range(4):
        members(client, name)
    aws.clear_faults()
    assert set(members(client, name)) == ids


def test_empty_responses_do_not_count(client: Client, aws: EmulatedAws, three_nodes: tuple[str, set[str]]) -> None:
    name, ids = three_nodes
    for _ in range(3):
        client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["none"])
    assert set(members(client, name)) == ids


def test_omission_of_each_response_is_invalid(aws: EmulatedAws) -> None:
    every_response: dict[str, Any] = {"kind": "member-omission", "every": 1}
    with pytest.raises(ValueError, match="every"):
        aws.inject(every_response)
