"""Root volumes under a customer managed key: the launching principal needs permission, or the instance terminates."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.billing import billed_by_type
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.aws.conftest import UBUNTU_PARAMETER, Client, Network
from tests.rehearsal.aws.iam.test_authorization import Role, Statement, allow, role
from tests.rehearsal.aws.storage.test_encryption import delete, disable

__all__ = ["role"]

ROLE = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
ROOT = allow("kms:*", "*", Principal={"AWS": f"arn:aws:iam::{ACCOUNT}:root"})
# From AWS's page on key policies for Auto Scaling.
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
    """Create the account's first group, and with it Auto Scaling's service-linked role."""
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


def launch_in_group(client: Client, name: str, count: int = 1) -> dict[str, Any]:
    response: dict[str, Any] = client("autoscaling").launch_instances(
        AutoScalingGroupName=name, RequestedCapacity=count, ClientToken="t"
    )
    return response


def instances_of(client: Client, key: str) -> list[dict[str, Any]]:
    """Return the instances launched from this template, terminated ones included."""
    described = client("ec2").describe_instances(Filters=[{"Name": "tag:key", "Values": [key]}])["Reservations"]
    return [instance for reservation in described for instance in reservation["Instances"]]


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
def test_launch_succeeds_if_key_policy_allows_auto_scaling(
    client: Client, linked: None, group: Group, name: str, statements: list[Statement]
) -> None:
    key = key_of(client, *statements)
    group(root_volume(key) | tagged(key))
    response = launch_in_group(client, name, 2)
    assert response["Errors"] == []
    assert len(response["Instances"][0]["InstanceIds"]) == 2
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
def test_instances_terminate_if_key_policy_denies_auto_scaling(
    aws: EmulatedAws, client: Client, linked: None, group: Group, name: str, statements: list[Statement]
) -> None:
    key = key_of(client, *statements)
    group(root_volume(key) | tagged(key))
    response = launch_in_group(client, name, 2)
    assert [(error["ErrorCode"], error["ErrorMessage"]) for error in response["Errors"]] == [
        ("Client.InternalError", "Client error on launch")
    ]
    assert response["Instances"] == []
    ended = instances_of(client, key)
    assert [instance["State"]["Name"] for instance in ended] == ["terminated", "terminated"]
    assert {instance["StateReason"]["Code"] for instance in ended} == {"Client.InternalError"}
    described = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    (described,) = described["AutoScalingGroups"]
    assert (described["DesiredCapacity"], described["Instances"]) == (0, [])
    ids = {instance["InstanceId"] for instance in ended}
    assert billed_by_type((each for each in aws.instances() if each.id in ids), aws.now()) == []


def run(ec2: Any, network: Network, key: str) -> str:
    """Launch one instance without a group and return its id."""
    response = ec2.run_instances(
        ImageId=network.image, InstanceType="t3.medium", MinCount=1, MaxCount=1, **root_volume(key)
    )
    return str(response["Instances"][0]["InstanceId"])


def state_of(client: Client, instance: str) -> tuple[str, str]:
    (described,) = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"]
    return described["State"]["Name"], described.get("StateReason", {}).get("Code", "")


@pytest.mark.parametrize("spoil", [disable, delete])
def test_instances_of_every_caller_terminate_if_key_is_unusable(
    client: Client, linked: None, group: Group, network: Network, name: str, spoil: Callable[[Client, str], Any]
) -> None:
    key = key_of(client, ROOT, USE, GRANT)
    spoil(client, key)
    group(root_volume(key) | tagged(key))
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)
    assert [instance["State"]["Name"] for instance in instances_of(client, key)] == ["terminated"]
    assert state_of(client, run(client("ec2"), network, key)) == ("terminated", "Client.InternalError")


def test_volume_under_aws_managed_key_needs_no_permission(client: Client, group: Group, name: str) -> None:
    group({"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"Encrypted": True}}]})
    assert launch_in_group(client, name)["Errors"] == []


@pytest.mark.parametrize(("may", "state"), [(True, "running"), (False, "terminated")])
def test_launching_role_needs_permission_for_the_key(
    client: Client, role: Role, network: Network, may: bool, state: str
) -> None:
    key = key_of(client, ROOT)
    statements = [
        allow(["ec2:RunInstances"], "*"),
        allow([*USES, "kms:CreateGrant"], key if may else "arn:aws:kms:::none"),
    ]
    assert state_of(client, run(role(*statements)("ec2"), network, key))[0] == state


def test_service_linked_role_is_created_with_the_first_group(client: Client, linked: None) -> None:
    assert client("iam").get_role(RoleName="AWSServiceRoleForAutoScaling")["Role"]["Arn"] == ROLE


def test_first_group_of_an_account_launches_its_instances(tmp_path: Path) -> None:
    with EmulatedAws.start(tmp_path) as account:
        session = account.session()

        def client(service: str) -> Any:
            return session.client(service, endpoint_url=account.endpoint)

        image = client("ssm").get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"]
        key = key_of(client, ROOT, allow([*USES, "kms:CreateGrant"], "*", Principal="*", Condition=BY_ARN))
        data = {"ImageId": image, "InstanceType": "t3.medium", **root_volume(key)}
        client("ec2").create_launch_template(LaunchTemplateName="first", LaunchTemplateData=data)
        client("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName="first",
            MinSize=1,
            MaxSize=1,
            VPCZoneIdentifier=client("ec2").describe_subnets()["Subnets"][0]["SubnetId"],
            LaunchTemplate={"LaunchTemplateName": "first", "Version": "1"},
        )
        assert [instance.state for instance in account.instances()] == ["running"]


def test_service_linked_role_is_not_a_leak(aws: EmulatedAws, linked: None) -> None:
    assert "AWSServiceRoleForAutoScaling" not in {each.id for each in aws.list_resources()}
