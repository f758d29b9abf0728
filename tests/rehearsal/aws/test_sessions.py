"""Session Manager of the emulated account: which instances a session can be started on."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.aws.conftest import Client, Network

AGENT = ("ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:OpenDataChannel")
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


def launch(client: Client, network: Network, name: str, actions: tuple[str, ...] | None, **options: str) -> str:
    """Launch an instance in the default VPC, whose role has these permissions; None: without a role."""
    profile: dict[str, Any] = {}
    if actions is not None:
        iam = client("iam")
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST))
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": "*"}]}
        iam.put_role_policy(RoleName=name, PolicyName="agent", PolicyDocument=json.dumps(policy))
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        profile = {"IamInstanceProfile": {"Name": name}}
    response = client("ec2").run_instances(
        ImageId=network.image, InstanceType="t3.medium", MinCount=1, MaxCount=1, **profile, **options
    )
    return str(response["Instances"][0]["InstanceId"])


def error_code(client: Client, **request: Any) -> str:
    with pytest.raises(ClientError) as error:
        client("ssm").start_session(**request)
    return str(error.value.response["Error"]["Code"])


def test_session_of_a_running_instance_is_started_and_terminated(client: Client, network: Network, name: str) -> None:
    instance = launch(client, network, name, AGENT)
    session = client("ssm").start_session(Target=instance)
    assert session["StreamUrl"].startswith("wss://ssmmessages.us-east-1.amazonaws.com/v1/data-channel/")
    assert session["TokenValue"]
    terminated = client("ssm").terminate_session(SessionId=session["SessionId"])
    assert terminated["SessionId"] == session["SessionId"]


@pytest.mark.parametrize("actions", [None, AGENT[:2]])
def test_instance_without_permissions_of_the_agent_is_not_connected(
    actions: tuple[str, ...] | None, client: Client, network: Network, name: str
) -> None:
    instance = launch(client, network, name, actions)
    assert error_code(client, Target=instance) == "TargetNotConnected"


def test_unknown_and_terminated_instances_are_not_connected(client: Client, network: Network, name: str) -> None:
    instance = launch(client, network, name, AGENT)
    client("ec2").terminate_instances(InstanceIds=[instance])
    assert error_code(client, Target=instance) == "TargetNotConnected"
    assert error_code(client, Target="i-0123456789abcdef0") == "TargetNotConnected"


def test_unknown_document_is_refused(client: Client, network: Network, name: str) -> None:
    instance = launch(client, network, name, AGENT)
    assert error_code(client, Target=instance, DocumentName="AWS-StartNothing") == "InvalidDocument"


def test_instance_without_a_route_to_the_service_is_not_connected(client: Client, network: Network, name: str) -> None:
    instance = launch(client, network, name, AGENT, SubnetId=network.subnet)
    assert error_code(client, Target=instance) == "TargetNotConnected"
