"""Root volumes under a customer's key: who launches must be let to use it, or the instance ends as it begins."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.aws.billing import billed_by_type
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.iam.test_rights import Role, Statement, allow, role
from tests.rehearsal.aws.storage.test_encryption import delete, disable

__all__ = ["role"]

ROLE = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
ROOT = allow("kms:*", "*", Principal={"AWS": f"arn:aws:iam::{ACCOUNT}:root"})
# As AWS's page on key policies for Auto Scaling has them.
USES = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
USE = allow(USES, "*", Principal={"AWS": ROLE})
GRANT = allow(
    "kms:CreateGrant", "*", Principal={"AWS": ROLE}, Condition={"Bool": {"kms:GrantIsForAWSResource": "true"}}
)
BY_ARN = {"ArnLike": {"aws:PrincipalArn": ROLE}}
Group = Callable[..., str]


def key_of(client: Client, *statements: Statement) -> str:
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    return str(client("kms").create_key(Policy=policy)["KeyMetadata"]["Arn"])


def root_volume(key: str) -> dict[str, Any]:
    return {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"Encrypted": True, "KmsKeyId": key}}]}


@pytest.fixture(scope="session")
def linked(client: Client, network: Network) -> None:
    """The account's first group was made: Auto Scaling has its role."""
    data = {"ImageId": network.image, "InstanceType": "t3.medium"}
    client("ec2").create_launch_template(LaunchTemplateName="first", LaunchTemplateData=data)
    launch = {"LaunchTemplateName": "first", "Version": "$Latest"}
    client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="first",
        MinSize=0,
        MaxSize=0,
        VPCZoneIdentifier=network.subnet,
        LaunchTemplate=launch,
    )


def launched(client: Client, name: str, count: int = 1) -> dict[str, Any]:
    told: dict[str, Any] = client("autoscaling").launch_instances(
        AutoScalingGroupName=name, RequestedCapacity=count, ClientToken="t"
    )
    return told


def instances_of(client: Client, key: str) -> list[dict[str, Any]]:
    """Those that the group of this template launched, terminated ones included."""
    found = client("ec2").describe_instances(Filters=[{"Name": "tag:key", "Values": [key]}])["Reservations"]
    return [instance for reservation in found for instance in reservation["Instances"]]


def tagged(key: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "key", "Value": key}]}]}


@pytest.mark.parametrize(
    "statements",
    [
        [ROOT, USE, GRANT],
        [ROOT, allow([*USES, "kms:CreateGrant"], "*", Principal="*", Condition=BY_ARN)],
        [ROOT, allow("kms:*", "*", Principal={"AWS": "*"}, Condition={"StringLike": {"kms:ViaService": "ec2.*"}})],
    ],
)
def test_a_key_that_lets_auto_scaling_use_it_opens_the_volumes(
    client: Client, linked: None, group: Group, name: str, statements: list[Statement]
) -> None:
    key = key_of(client, *statements)
    group(root_volume(key) | tagged(key))
    told = launched(client, name, 2)
    assert told["Errors"] == []
    assert len(told["Instances"][0]["InstanceIds"]) == 2
    (volume,) = instances_of(client, key)[0]["BlockDeviceMappings"]
    described = client("ec2").describe_volumes(VolumeIds=[volume["Ebs"]["VolumeId"]])["Volumes"][0]
    assert (described["Encrypted"], described["KmsKeyId"]) == (True, key)


@pytest.mark.parametrize(
    "statements",
    [
        [ROOT],
        [ROOT, USE],
        [ROOT, GRANT],
        [ROOT, USE, GRANT | {"Condition": {"Bool": {"aws:SecureTransport": "false"}}}],
    ],
)
def test_a_key_that_does_not_ends_each_instance_at_once(
    aws: EmulatedAws, client: Client, linked: None, group: Group, name: str, statements: list[Statement]
) -> None:
    key = key_of(client, *statements)
    group(root_volume(key) | tagged(key))
    told = launched(client, name, 2)
    assert [(error["ErrorCode"], error["ErrorMessage"]) for error in told["Errors"]] == [
        ("Client.InternalError", "Client error on launch")
    ]
    assert told["Instances"] == []
    ended = instances_of(client, key)
    assert [instance["State"]["Name"] for instance in ended] == ["terminated", "terminated"]
    assert {instance["StateReason"]["Code"] for instance in ended} == {"Client.InternalError"}
    described = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    (found,) = described["AutoScalingGroups"]
    assert (found["DesiredCapacity"], found["Instances"]) == (0, [])
    ids = {instance["InstanceId"] for instance in ended}
    assert billed_by_type((each for each in aws.instances() if each.id in ids), aws.now()) == []


def run(ec2: Any, network: Network, key: str) -> str:
    """Run one instance by itself; its id."""
    made = ec2.run_instances(
        ImageId=network.image, InstanceType="t3.medium", MinCount=1, MaxCount=1, **root_volume(key)
    )
    return str(made["Instances"][0]["InstanceId"])


def state_of(client: Client, instance: str) -> tuple[str, str]:
    (found,) = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"]
    return found["State"]["Name"], found.get("StateReason", {}).get("Code", "")


@pytest.mark.parametrize("spoil", [disable, delete])
def test_a_key_out_of_use_ends_the_instances_of_all(
    client: Client, linked: None, group: Group, network: Network, name: str, spoil: Callable[[Client, str], Any]
) -> None:
    key = key_of(client, ROOT, USE, GRANT)
    spoil(client, key)
    group(root_volume(key) | tagged(key))
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)
    assert [instance["State"]["Name"] for instance in instances_of(client, key)] == ["terminated"]
    assert state_of(client, run(client("ec2"), network, key)) == ("terminated", "Client.InternalError")


def test_a_volume_under_the_account_s_own_key_asks_nobody(client: Client, group: Group, name: str) -> None:
    group({"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"Encrypted": True}}]})
    assert launched(client, name)["Errors"] == []


@pytest.mark.parametrize(("may", "state"), [(True, "running"), (False, "terminated")])
def test_a_role_that_launches_needs_the_rights_to_the_key(
    client: Client, role: Role, network: Network, may: bool, state: str
) -> None:
    key = key_of(client, ROOT)
    own = [allow(["ec2:RunInstances"], "*"), allow([*USES, "kms:CreateGrant"], key if may else "arn:aws:kms:::none")]
    assert state_of(client, run(role(*own)("ec2"), network, key))[0] == state


def test_auto_scaling_s_role_is_there_from_the_first_group_on(client: Client, linked: None) -> None:
    assert client("iam").get_role(RoleName="AWSServiceRoleForAutoScaling")["Role"]["Arn"] == ROLE


def test_a_service_s_own_role_is_no_leak(aws: EmulatedAws, linked: None) -> None:
    assert "AWSServiceRoleForAutoScaling" not in {each.id for each in aws.dump()}
