"""The path of a node's request: VPC endpoints and their policies, NAT gateways, and condition keys of the network."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.iam.test_authorization import ALLOWED, DENIED, Statement, allow, deny, outcome
from tests.rehearsal.aws.iam.test_identity import TRUST

CONFIG = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
S3, AUTOSCALING = "com.amazonaws.us-east-1.s3", "com.amazonaws.us-east-1.autoscaling"


@dataclass(frozen=True)
class Node:
    """An instance in a private subnet of a VPC without a route to the internet, and a bucket with the object `x`."""

    vpc: str
    subnet: str
    table: str
    instance: str
    bucket: str


@pytest.fixture
def node(client: Client, network: Network, name: str) -> Node:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    for attribute in ("EnableDnsSupport", "EnableDnsHostnames"):
        ec2.modify_vpc_attribute(VpcId=vpc, **{attribute: {"Value": True}})
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.8.0.0/20", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    launched = ec2.run_instances(
        ImageId=network.image, InstanceType="t3.medium", SubnetId=subnet, MinCount=1, MaxCount=1
    )
    bucket = f"path-{name}"
    client("s3").create_bucket(Bucket=bucket)
    client("s3").put_object(Bucket=bucket, Key="x", Body=b"x")
    return Node(vpc, subnet, table, launched["Instances"][0]["InstanceId"], bucket)


@pytest.fixture
def clients(aws: EmulatedAws, client: Client, node: Node, name: str) -> Callable[..., Callable[..., Any]]:
    """Return a function that creates the node's role and returns clients of its session, on the node or elsewhere."""

    def make(*statements: Statement) -> Callable[..., Any]:
        iam, document = client("iam"), {"Version": "2012-10-17", "Statement": list(statements)}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
        iam.put_role_policy(RoleName=name, PolicyName="inline", PolicyDocument=json.dumps(document))
        arn = f"arn:aws:iam::123456789012:role/{name}"
        keys = client("sts").assume_role(RoleArn=arn, RoleSessionName=node.instance)["Credentials"]
        session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], "us-east-1")

        def of(service: str, *, on_node: bool = True) -> Any:
            endpoint = aws.node_endpoint if on_node else aws.endpoint
            return session.client(service, endpoint_url=endpoint, config=CONFIG)

        return of

    return make


def add_s3_endpoint(client: Client, node: Node, *statements: Statement) -> None:
    """Create the gateway endpoint for S3; without statements with the default policy."""
    document = {"Statement": [{**each, "Principal": "*"} for each in statements]}
    policy = {"PolicyDocument": json.dumps(document)} if statements else {}
    client("ec2").create_vpc_endpoint(
        VpcId=node.vpc, ServiceName=S3, VpcEndpointType="Gateway", RouteTableIds=[node.table], **policy
    )


def add_nat_gateway(client: Client, node: Node) -> str:
    """Create a NAT gateway in a public subnet, and the route to it. Returns its public address."""
    ec2 = client("ec2")
    public = ec2.create_subnet(VpcId=node.vpc, CidrBlock="10.8.16.0/20", AvailabilityZone="us-east-1a")["Subnet"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=node.vpc)
    table = ec2.create_route_table(VpcId=node.vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=public["SubnetId"])
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    address = ec2.allocate_address(Domain="vpc")
    nat = ec2.create_nat_gateway(SubnetId=public["SubnetId"], AllocationId=address["AllocationId"])["NatGateway"]
    ec2.create_route(RouteTableId=node.table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat["NatGatewayId"])
    return str(address["PublicIp"])


def test_request_without_a_route_gets_no_response(
    aws: EmulatedAws, node: Node, clients: Callable[..., Callable[..., Any]]
) -> None:
    of = clients(allow("*", "*"))
    with pytest.raises(ConnectionClosedError):
        of("s3").get_object(Bucket=node.bucket, Key="x")
    assert aws.journal()[-1].error_code == "NoRoute"
    assert outcome(lambda: of("s3", on_node=False).get_object(Bucket=node.bucket, Key="x")) == ALLOWED


def test_gateway_endpoint_leads_to_its_service_only(
    client: Client, node: Node, clients: Callable[..., Callable[..., Any]]
) -> None:
    add_s3_endpoint(client, node)
    of = clients(allow("*", "*"))
    assert outcome(lambda: of("s3").get_object(Bucket=node.bucket, Key="x")) == ALLOWED
    with pytest.raises(ConnectionClosedError):
        of("autoscaling").describe_auto_scaling_groups()


def test_interface_endpoint_leads_to_its_service(
    aws: EmulatedAws, client: Client, node: Node, clients: Callable[..., Callable[..., Any]]
) -> None:
    client("ec2").create_vpc_endpoint(
        VpcId=node.vpc,
        ServiceName=AUTOSCALING,
        VpcEndpointType="Interface",
        SubnetIds=[node.subnet],
        PrivateDnsEnabled=True,
    )
    aws.advance_clock(1)
    assert outcome(clients(allow("*", "*"))("autoscaling").describe_auto_scaling_groups) == ALLOWED


def test_nat_gateway_leads_to_every_service(
    client: Client, node: Node, clients: Callable[..., Callable[..., Any]]
) -> None:
    address = add_nat_gateway(client, node)
    only_nat = {"NotIpAddress": {"aws:SourceIp": f"{address}/32"}}
    of = clients(allow("*", "*"), deny("*", "*", Condition=only_nat))
    assert outcome(of("autoscaling").describe_auto_scaling_groups) == ALLOWED
    assert outcome(of("autoscaling", on_node=False).describe_auto_scaling_groups) == DENIED


def test_credentials_limited_to_the_vpc_are_denied_elsewhere(
    client: Client, node: Node, clients: Callable[..., Callable[..., Any]]
) -> None:
    add_s3_endpoint(client, node)
    of = clients(allow("s3:*", "*"), deny("*", "*", Condition={"StringNotEquals": {"aws:SourceVpc": node.vpc}}))
    assert outcome(lambda: of("s3").get_object(Bucket=node.bucket, Key="x")) == ALLOWED
    assert outcome(lambda: of("s3", on_node=False).get_object(Bucket=node.bucket, Key="x")) == DENIED


def test_endpoint_policy_limits_the_requests_of_nodes(
    client: Client, node: Node, clients: Callable[..., Callable[..., Any]]
) -> None:
    add_s3_endpoint(client, node, allow("s3:*", "arn:aws:s3:::another-bucket/*"))
    of = clients(allow("s3:*", "*"))
    assert outcome(lambda: of("s3").get_object(Bucket=node.bucket, Key="x")) == DENIED
    assert outcome(lambda: of("s3", on_node=False).get_object(Bucket=node.bucket, Key="x")) == ALLOWED


def test_endpoint_policy_for_another_account_denies(
    client: Client, node: Node, clients: Callable[..., Callable[..., Any]]
) -> None:
    account = {"StringEquals": {"aws:PrincipalAccount": "210987654321"}}
    add_s3_endpoint(client, node, allow("s3:*", "*", Condition=account))
    of = clients(allow("s3:*", "*"))
    assert outcome(lambda: of("s3").get_object(Bucket=node.bucket, Key="x")) == DENIED


def test_instance_in_the_default_vpc_reaches_the_internet(
    aws: EmulatedAws, client: Client, network: Network, name: str
) -> None:
    iam, document = client("iam"), {"Version": "2012-10-17", "Statement": [allow("s3:ListAllMyBuckets", "*")]}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    iam.put_role_policy(RoleName=name, PolicyName="inline", PolicyDocument=json.dumps(document))
    launched = client("ec2").run_instances(ImageId=network.image, InstanceType="t3.medium", MinCount=1, MaxCount=1)
    instance = launched["Instances"][0]["InstanceId"]
    role = f"arn:aws:iam::123456789012:role/{name}"
    keys = client("sts").assume_role(RoleArn=role, RoleSessionName=instance)["Credentials"]
    session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], aws.region)
    s3 = session.client("s3", endpoint_url=aws.node_endpoint, config=CONFIG)
    assert outcome(s3.list_buckets) == ALLOWED
