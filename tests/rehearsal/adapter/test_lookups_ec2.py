"""Look-ups of what a stack says exists: from the emulated account, and from a static one."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import Account, Adapter
from rehearsal.adapter.errors import Refused, UnknownKey
from rehearsal.adapter.static import StaticAccount
from rehearsal.adapter.static_ec2 import StaticNetwork, StaticSubnet, reservation
from rehearsal.aws.faults import Quota
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import Given, GivenNetwork, GivenReservation, GivenSubnet

VPC, SUBNET, BLOCK = "vpc-0123456789abcdef1", "subnet-0123456789abcdef1", "cr-0123456789abcdef1"
P = "L-417A185B"
GET_VPC, GET_SUBNET = "aws:ec2/getVpc:getVpc", "aws:ec2/getSubnet:getSubnet"
GET_TABLE, GET_ENDPOINT = "aws:ec2/getRouteTable:getRouteTable", "aws:ec2/getVpcEndpoint:getVpcEndpoint"
GET_RESOURCE, GET_IMAGE = "aws:cloudcontrol/getResource:getResource", "aws:ec2/getAmi:getAmi"
GET_QUOTA, GET_PARAMETER = "aws:servicequotas/getServiceQuota:getServiceQuota", "aws:ssm/getParameter:getParameter"
RESERVATION = "AWS::EC2::CapacityReservation"


@pytest.fixture(params=["emulated", "static"])
def account(request: pytest.FixtureRequest, aws: EmulatedAws) -> Iterator[Account]:
    """An account with a network, a Capacity Block and a small quota."""
    if request.param == "static":
        network = StaticNetwork(
            subnets=(StaticSubnet(id=SUBNET), StaticSubnet(id=f"{SUBNET[:-1]}2", own_table=False)),
            endpoints=frozenset(["com.amazonaws.us-east-1.s3", "com.amazonaws.us-east-1.ssm"]),
        )
        blocks = {BLOCK: reservation(InstanceType="p4d.24xlarge", TotalInstanceCount=2)}
        yield StaticAccount(networks={VPC: network}, reservations=blocks, quotas={P: 96})
        return
    held = GivenReservation(
        id=BLOCK, instance_type="p4d.24xlarge", zone="us-east-1a", count=2, block=True, end=aws.now() + 86400
    )
    network_given = GivenNetwork(id=VPC, subnets=(GivenSubnet(id=SUBNET, zone="us-east-1a"),))
    aws.give(Given(region="us-east-1", reservations=(held,), networks=(network_given,)))
    aws.inject(Quota(code=P, vcpus=96))
    yield Adapter(aws.region, run_commands=False)
    aws.clear_faults()


def test_a_reservation_is_found_with_its_properties(account: Account) -> None:
    answer = account.look_up(GET_RESOURCE, {"typeName": RESERVATION, "identifier": BLOCK})
    found = json.loads(answer["properties"])
    assert (found["InstanceType"], found["ReservationType"], found["State"]) == (
        "p4d.24xlarge",
        "capacity-block",
        "active",
    )
    assert (found["TotalInstanceCount"], found["AvailabilityZone"]) == (2, "us-east-1a")
    assert found["EndDate"].endswith("Z")


def test_a_quota_has_its_value(account: Account) -> None:
    assert account.look_up(GET_QUOTA, {"serviceCode": "ec2", "quotaCode": P})["value"] == 96
    assert account.look_up(GET_QUOTA, {"serviceCode": "ec2", "quotaCode": "L-DB2E81BA"})["value"] == 1_000_000


def test_a_network_is_found_with_its_subnets_routes_and_endpoints(account: Account) -> None:
    vpc = account.look_up(GET_VPC, {"id": VPC})
    assert (vpc["cidrBlock"], vpc["enableDnsSupport"], vpc["enableDnsHostnames"]) == ("10.0.0.0/16", True, True)
    subnet = account.look_up(GET_SUBNET, {"id": SUBNET})
    assert (subnet["vpcId"], subnet["availabilityZone"], subnet["mapPublicIpOnLaunch"]) == (VPC, "us-east-1a", False)
    assert 3900 < subnet["availableIpAddressCount"] < 4096
    (route,) = account.look_up(GET_TABLE, {"subnetId": SUBNET})["routes"]
    assert (route["cidrBlock"], route["natGatewayId"][:4], route.get("gatewayId", "")) == ("0.0.0.0/0", "nat-", "")
    asked = {"vpcId": VPC, "serviceName": "com.amazonaws.us-east-1.s3", "state": "available"}
    assert account.look_up(GET_ENDPOINT, asked)["vpcEndpointType"] == "Gateway"


def test_a_subnet_without_a_table_of_its_own_has_the_main_one(account: Account) -> None:
    other = f"{SUBNET[:-1]}2"
    if isinstance(account, Adapter):
        ec2 = boto3.client("ec2")
        other = ec2.create_subnet(VpcId=VPC, CidrBlock="10.0.240.0/20")["Subnet"]["SubnetId"]
    with pytest.raises(Refused, match="query returned no results"):
        account.look_up(GET_TABLE, {"subnetId": other})
    main = {"vpcId": VPC, "filters": [{"name": "association.main", "values": ["true"]}]}
    assert account.look_up(GET_TABLE, main)["routes"] == []
    if isinstance(account, Adapter):
        boto3.client("ec2").delete_subnet(SubnetId=other)


ABSENT: dict[str, tuple[str, dict[str, Any], str]] = {
    "a VPC": (GET_VPC, {"id": "vpc-0aaaaaaaaaaaaaaaa"}, "no matching EC2 VPC found"),
    "a subnet": (GET_SUBNET, {"id": "subnet-0aaaaaaaaaaaaaaaa"}, "no matching EC2 Subnet found"),
    "an endpoint": (
        GET_ENDPOINT,
        {"vpcId": VPC, "serviceName": "com.amazonaws.us-east-1.fsx", "state": "available"},
        "no matching EC2 VPC Endpoint found",
    ),
    "a reservation": (
        GET_RESOURCE,
        {"typeName": RESERVATION, "identifier": "cr-0aaaaaaaaaaaaaaaa"},
        "couldn't find resource",
    ),
}


@pytest.mark.parametrize("case", ABSENT)
def test_what_is_absent_is_told_in_the_providers_words(account: Account, case: str) -> None:
    token, given, words = ABSENT[case]
    with pytest.raises(Refused, match=words):
        account.look_up(token, given)


@pytest.mark.parametrize(
    ("parameter", "root"),
    [
        ("/aws/service/debian/release/12/latest/amd64", "/dev/xvda"),
        ("/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id", "/dev/sda1"),
    ],
)
def test_an_image_has_its_root_device(account: Account, parameter: str, root: str) -> None:
    image = account.look_up(GET_PARAMETER, {"name": parameter})["insecureValue"]
    found = account.look_up(GET_IMAGE, {"filters": [{"name": "image-id", "values": [image]}]})
    assert (found["id"], found["rootDeviceName"], found["architecture"], found["state"]) == (
        image,
        root,
        "x86_64",
        "available",
    )
    (device,) = found["blockDeviceMappings"]
    assert (device["deviceName"], int(device["ebs"]["volume_size"]) >= 8) == (root, True)


def test_an_image_that_is_not_there_is_told(aws: EmulatedAws) -> None:
    asked = {"filters": [{"name": "image-id", "values": ["ami-0aaaaaaaaaaaaaaaa"]}]}
    with pytest.raises(Refused, match="Your query returned no results"):
        Adapter(aws.region).look_up(GET_IMAGE, asked)


def test_an_unknown_key_of_a_look_up_is_an_error(account: Account) -> None:
    with pytest.raises(UnknownKey, match="enableClassiclink"):
        account.look_up(GET_VPC, {"id": VPC, "enableClassiclink": True})


def test_a_static_account_suits_a_stack_that_names_nothing_special() -> None:
    static = StaticAccount(region="eu-north-1")
    found = json.loads(
        static.look_up(GET_RESOURCE, {"typeName": RESERVATION, "identifier": "cr-0123456789abcdef0"})["properties"]
    )
    assert found["AvailabilityZone"] == "eu-north-1a"
    assert static.look_up(GET_VPC, {"id": "vpc-0123456789abcdef0"})["state"] == "available"
