"""Fixtures: one emulated AWS for all tests of this package. Each test creates its resources in it."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import count
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws

UBUNTU_PARAMETER = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
Client = Callable[[str], Any]
_numbers = count(1)


@dataclass(frozen=True)
class Network:
    """A VPC with one subnet in a zone that offers every type of the catalog, and one security group."""

    vpc: str
    subnet: str
    group: str
    image: str


ADDRESSES = IPv4Network("127.77.16.0/20")  # each launch takes other addresses


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(tmp_path_factory.mktemp("aws"), str(ADDRESSES)) as running:
        yield running


@pytest.fixture(scope="session")
def client(aws: EmulatedAws) -> Client:
    """Return a function that returns the boto3 client of a service of the emulated account."""
    created: dict[str, Any] = {}
    session = aws.session()
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})

    def client_of(service: str) -> Any:
        if service not in created:
            created[service] = session.client(service, endpoint_url=aws.endpoint, config=config)
        return created[service]

    return client_of


@pytest.fixture
def name() -> str:
    """A unique resource name."""
    return f"thing-{next(_numbers)}"


@pytest.fixture(scope="session")
def network(client: Client) -> Network:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="shared", Description="shared", VpcId=vpc)["GroupId"]
    image = client("ssm").get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"]
    return Network(vpc, subnet, group, image)


@pytest.fixture(scope="session")
def profile(client: Client) -> str:
    """Name of an instance profile with the role `node`."""
    trust = {
        "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}]
    }
    iam = client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", **trust}))
    iam.create_instance_profile(InstanceProfileName="node-profile")
    iam.add_role_to_instance_profile(InstanceProfileName="node-profile", RoleName="node")
    return "node-profile"


@pytest.fixture
def template(client: Client, network: Network, profile: str, name: str) -> Callable[..., str]:
    """Return a function that creates a launch template of a small node and returns its id.

    Keyword arguments replace keys of the template data.
    """

    def make(**data: Any) -> str:
        complete_data = {
            "ImageId": network.image,
            "InstanceType": "t3.medium",
            "IamInstanceProfile": {"Name": profile},
            "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [network.group], "DeleteOnTermination": True}],
            **data,
        }
        kept = {key: value for key, value in complete_data.items() if value is not None}
        created = client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=kept)
        return str(created["LaunchTemplate"]["LaunchTemplateId"])

    return make


@pytest.fixture
def group(client: Client, network: Network, template: Callable[..., str], name: str) -> Iterator[Callable[..., str]]:
    """Return a function that creates an empty Auto Scaling group and returns its name.

    Keyword arguments replace those of the creation. The group and its instances are deleted after the test.
    """

    def make(data: dict[str, Any] | None = None, **options: Any) -> str:
        complete_data = {
            "MinSize": 0,
            "MaxSize": 4,
            "DesiredCapacity": 0,
            "VPCZoneIdentifier": network.subnet,
            "LaunchTemplate": {"LaunchTemplateId": template(**(data or {})), "Version": "$Latest"},
            **options,
        }
        client("autoscaling").create_auto_scaling_group(AutoScalingGroupName=name, **complete_data)
        return name

    yield make
    with suppress(ClientError):  # the test deleted the group or created none
        client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
