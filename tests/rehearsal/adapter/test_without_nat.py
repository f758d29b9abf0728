"""A stack without a NAT gateway: its nodes reach the endpoints of its VPC, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.adapter.conftest import ROOT
from tests.rehearsal.adapter.test_stacks import OTHERS, config_of
from trainyard.models.layout import MANIFEST

STACK = "without-nat"


@pytest.fixture(scope="module")
def deployed(aws: EmulatedAws) -> Iterator[Deployment]:
    run = up(config_of(*OTHERS["no-nat-gateway"]), STACK, ROOT, account=EmulatedAccount(aws.region, run_commands=False))
    yield run
    destroy(run)


@pytest.fixture(scope="module")
def head(aws: EmulatedAws, deployed: Deployment) -> Callable[..., Any]:
    """Return a function that returns clients with the credentials and the network of the head."""
    (record,) = [each for each in aws.instances() if each.tags.get("trainyard:stack") == f"trainyard/{STACK}"]
    arn = f"arn:aws:iam::{ACCOUNT}:role/{record.role_name}"
    keys = boto3.client("sts").assume_role(RoleArn=arn, RoleSessionName=record.id)["Credentials"]
    session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"])
    config = Config(retries={"total_max_attempts": 1})

    def client(service: str, region: str | None = None) -> Any:
        return session.client(service, region, endpoint_url=aws.node_endpoint, config=config)

    return client


def test_no_route_leads_out_of_the_vpc(deployed: Deployment) -> None:
    ec2, vpc = boto3.client("ec2"), deployed.resource("aws:ec2/vpc:Vpc", "network-vpc").id
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    routes = [route for table in tables for route in table["Routes"]]
    (endpoint,) = [route for route in routes if route["GatewayId"] != "local"]
    assert endpoint["GatewayId"] == deployed.resource("aws:ec2/vpcEndpoint:VpcEndpoint", "endpoints-s3").id
    attached = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
    assert ec2.describe_internet_gateways(Filters=attached)["InternetGateways"] == []


def test_nodes_reach_the_services_that_have_an_endpoint(deployed: Deployment, head: Callable[..., Any]) -> None:
    head("s3").head_object(Bucket=deployed.exports["staging_bucket"], Key=MANIFEST)
    head("autoscaling").describe_auto_scaling_groups()
    head("ec2").describe_instance_status()


CALLS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "a service without an endpoint": lambda head: head("sns").list_topics(),
    "S3 of another region": lambda head: head("s3", "eu-west-1").list_buckets(),
    "EC2 of another region": lambda head: head("ec2", "eu-west-1").describe_instance_status(),
}


@pytest.mark.parametrize("case", CALLS)
def test_other_requests_of_nodes_get_no_response(head: Callable[..., Any], case: str) -> None:
    with pytest.raises(ConnectionClosedError):
        CALLS[case](head)
