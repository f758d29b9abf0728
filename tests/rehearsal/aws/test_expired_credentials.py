"""The fault `expired-credentials`: calls of the operator fail with each service's error; those of roles do not."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from rehearsal.aws.faults import ExpiredCredentials, ServiceOutage
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.test_faults import code_of

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}],
}
ALLOW = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "ec2:DescribeVpcs", "Resource": "*"}]}
CALLS: dict[str, tuple[Callable[[Client], Any], str, int]] = {
    "ec2": (lambda client: client("ec2").describe_vpcs(), "RequestExpired", 400),
    "autoscaling": (lambda client: client("autoscaling").describe_auto_scaling_groups(), "ExpiredToken", 403),
    "s3": (lambda client: client("s3").list_buckets(), "ExpiredToken", 400),
    "fsx": (lambda client: client("fsx").describe_file_systems(), "ExpiredTokenException", 400),
}


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws) -> Iterator[None]:
    yield
    aws.clear_faults()


@pytest.mark.parametrize("service", CALLS)
def test_each_service_has_its_error(client: Client, aws: EmulatedAws, service: str) -> None:
    call, code, status = CALLS[service]
    aws.inject(ExpiredCredentials(seconds=0))
    assert code_of(lambda: call(client)) == (code, status)


def test_credentials_are_valid_until_their_expiration(client: Client, aws: EmulatedAws) -> None:
    aws.inject(ExpiredCredentials(seconds=60))
    client("ec2").describe_vpcs()
    aws.advance_clock(60)
    assert code_of(lambda: client("ec2").describe_vpcs())[0] == "RequestExpired"
    aws.clear_faults()
    client("ec2").describe_vpcs()


def test_role_of_a_node_remains_valid(client: Client, aws: EmulatedAws, name: str) -> None:
    ec2 = client_of_node(client, aws, name)
    aws.inject(ExpiredCredentials(seconds=0))
    assert ec2.describe_vpcs()["Vpcs"]


def test_unavailable_service_fails_for_nodes_until_its_end(client: Client, aws: EmulatedAws, name: str) -> None:
    ec2 = client_of_node(client, aws, name)
    aws.inject(ServiceOutage(service="ec2", seconds=60))
    assert code_of(ec2.describe_vpcs) == ("ServiceUnavailable", 503)
    client("ec2").describe_vpcs()  # by the operator
    aws.advance_clock(60)
    ec2.describe_vpcs()


def client_of_node(client: Client, aws: EmulatedAws, name: str) -> Any:
    """Return a client of EC2 with the credentials of a node's role."""
    role = client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST))["Role"]["Arn"]
    client("iam").put_role_policy(RoleName=name, PolicyName="read", PolicyDocument=json.dumps(ALLOW))
    endpoint = {"endpoint_url": aws.endpoint, "region_name": "us-east-1"}
    ec2_service = aws.session("ec2").client("sts", endpoint_url=aws.endpoint)
    keys = ec2_service.assume_role(RoleArn=role, RoleSessionName="i-1")["Credentials"]
    session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"])
    return session.client("ec2", config=Config(retries={"total_max_attempts": 1}), **endpoint)
