"""EC2 lookups of existing resources, in the emulated account and in a static account."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from infra.lookups.image import PUBLIC_IMAGES
from rehearsal.adapter.account import Account, EmulatedAccount
from rehearsal.adapter.errors import RequestFailedError, UnsupportedInputError
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.adapter.static_ec2 import StaticNetwork, StaticSubnet, reservation_properties
from rehearsal.aws.faults import Quota
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedNetwork, SeedReservation, SeedSubnet

VPC, SUBNET, BLOCK = "vpc-0123456789abcdef1", "subnet-0123456789abcdef1", "cr-0123456789abcdef1"
P = "L-417A185B"
GET_VPC, GET_SUBNET = "aws:ec2/getVpc:getVpc", "aws:ec2/getSubnet:getSubnet"
GET_TABLE, GET_ENDPOINT = "aws:ec2/getRouteTable:getRouteTable", "aws:ec2/getVpcEndpoint:getVpcEndpoint"
GET_RESOURCE, GET_IMAGE = "aws:cloudcontrol/getResource:getResource", "aws:ec2/getAmi:getAmi"
GET_QUOTA = "aws:servicequotas/getServiceQuota:getServiceQuota"
RESERVATION = "AWS::EC2::CapacityReservation"


@pytest.fixture(params=["emulated", "static"])
def account(request: pytest.FixtureRequest, aws: EmulatedAws) -> Iterator[Account]:
    """An account with a network, a Capacity Block and a small quota."""
    if request.param == "static":
        network = StaticNetwork(
            subnets=(StaticSubnet(id=SUBNET), StaticSubnet(id=f"{SUBNET[:-1]}2", has_route_table=False)),
            endpoints=frozenset(["com.amazonaws.us-east-1.s3", "com.amazonaws.us-east-1.ssm"]),
        )
        blocks = {BLOCK: reservation_properties(InstanceType="p4d.24xlarge", TotalInstanceCount=2)}
        yield StaticAccount(networks={VPC: network}, reservations=blocks, quotas={P: 96})
        return
    reservation = SeedReservation(
        id=BLOCK, instance_type="p4d.24xlarge", zone="us-east-1a", count=2, block=True, end=aws.now() + 86400
    )
    seed_network = SeedNetwork(id=VPC, subnets=(SeedSubnet(id=SUBNET, zone="us-east-1a"),))
    aws.seed(AccountSeed(region="us-east-1", reservations=(reservation,), networks=(seed_network,)))
    aws.inject(Quota(code=P, vcpus=96))
    yield EmulatedAccount(aws.region, run_commands=False)
    aws.clear_faults()


def test_reservation_lookup_returns_the_properties(account: Account) -> None:
    response = account.invoke(GET_RESOURCE, {"typeName": RESERVATION, "identifier": BLOCK})
    result = json.loads(response["properties"])
    assert (result["InstanceType"], result["ReservationType"], result["State"]) == (
        "p4d.24xlarge",
        "capacity-block",
        "active",
    )
    assert (result["TotalInstanceCount"], result["AvailabilityZone"]) == (2, "us-east-1a")
    assert result["EndDate"].endswith("Z")


def test_quota_lookup_returns_the_value(account: Account) -> None:
    assert account.invoke(GET_QUOTA, {"serviceCode": "ec2", "quotaCode": P})["value"] == 96
    assert account.invoke(GET_QUOTA, {"serviceCode": "ec2", "quotaCode": "L-DB2E81BA"})["value"] == 1_000_000


def test_network_lookups_return_vpc_subnet_routes_and_endpoints(account: Account) -> None:
    vpc = account.invoke(GET_VPC, {"id": VPC})
    assert (vpc["cidrBlock"], vpc["enableDnsSupport"], vpc["enableDnsHostnames"]) == ("10.0.0.0/16", True, True)
    subnet = account.invoke(GET_SUBNET, {"id": SUBNET})
    assert (subnet["vpcId"], subnet["availabilityZone"], subnet["mapPublicIpOnLaunch"]) == (VPC, "us-east-1a", False)
    assert 3900 < subnet["availableIpAddressCount"] < 4096
    (route,) = account.invoke(GET_TABLE, {"subnetId": SUBNET})["routes"]
    assert (route["cidrBlock"], route["natGatewayId"][:4], route.get("gatewayId", "")) == ("0.0.0.0/0", "nat-", "")
    arguments = {"vpcId": VPC, "serviceName": "com.amazonaws.us-east-1.s3", "state": "available"}
    assert account.invoke(GET_ENDPOINT, arguments)["vpcEndpointType"] == "Gateway"


def test_subnet_without_a_route_table_uses_the_main_route_table(account: Account) -> None:
    subnet = f"{SUBNET[:-1]}2"
    if isinstance(account, EmulatedAccount):
        ec2 = boto3.client("ec2")
        subnet = ec2.create_subnet(VpcId=VPC, CidrBlock="10.0.240.0/20")["Subnet"]["SubnetId"]
    with pytest.raises(RequestFailedError, match="query returned no results"):
        account.invoke(GET_TABLE, {"subnetId": subnet})
    main = {"vpcId": VPC, "filters": [{"name": "association.main", "values": ["true"]}]}
    assert account.invoke(GET_TABLE, main)["routes"] == []
    if isinstance(account, EmulatedAccount):
        boto3.client("ec2").delete_subnet(SubnetId=subnet)


MISSING: dict[str, tuple[str, dict[str, Any], str]] = {
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


@pytest.mark.parametrize("case", MISSING)
def test_lookup_of_a_missing_resource_fails_with_the_providers_message(account: Account, case: str) -> None:
    token, arguments, message = MISSING[case]
    with pytest.raises(RequestFailedError, match=message):
        account.invoke(token, arguments)


@pytest.mark.parametrize("name", PUBLIC_IMAGES)
def test_lookup_by_name_and_owner_returns_a_pinned_image(account: Account, name: str) -> None:
    public = PUBLIC_IMAGES[name]
    filters = [{"name": "name", "values": [public.name.format(release=public.release)]}]
    result = account.invoke(GET_IMAGE, {"filters": filters, "owners": public.owners, "includeDeprecated": True})
    root = "/dev/xvda" if name == "debian-12" else "/dev/sda1"
    assert (result["rootDeviceName"], result["architecture"], result["state"]) == (
        root,
        "x86_64",
        "available",
    )
    (device,) = result["blockDeviceMappings"]
    assert (device["deviceName"], int(device["ebs"]["volume_size"]) >= 8) == (root, True)


def test_lookup_does_not_return_an_image_of_another_owner(aws: EmulatedAws) -> None:
    """Anyone may publish an AMI with Canonical's name."""
    public = PUBLIC_IMAGES["ubuntu-24.04"]
    filters = [{"name": "name", "values": [public.name.format(release=public.release)]}]
    with pytest.raises(RequestFailedError, match="Your query returned no results"):
        EmulatedAccount(aws.region).invoke(GET_IMAGE, {"filters": filters, "owners": ["amazon"]})


def test_lookup_of_a_missing_image_fails(aws: EmulatedAws) -> None:
    arguments = {"filters": [{"name": "image-id", "values": ["ami-0aaaaaaaaaaaaaaaa"]}]}
    with pytest.raises(RequestFailedError, match="Your query returned no results"):
        EmulatedAccount(aws.region).invoke(GET_IMAGE, arguments)


def test_unsupported_argument_of_a_lookup_raises_an_error(account: Account) -> None:
    with pytest.raises(UnsupportedInputError, match="enableClassiclink"):
        account.invoke(GET_VPC, {"id": VPC, "enableClassiclink": True})


def test_static_account_has_default_resources_in_the_region() -> None:
    static = StaticAccount(region="eu-north-1")
    result = json.loads(
        static.invoke(GET_RESOURCE, {"typeName": RESERVATION, "identifier": "cr-0123456789abcdef0"})["properties"]
    )
    assert result["AvailabilityZone"] == "eu-north-1a"
    assert static.invoke(GET_VPC, {"id": "vpc-0123456789abcdef0"})["state"] == "available"


def test_newest_image_of_the_named_months(aws: EmulatedAws) -> None:
    account, prefix = EmulatedAccount(aws.region, run_commands=False), "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-*-"

    def newest(*months: str) -> str:
        names = [{"name": "name", "values": [f"{prefix}{month}*" for month in months]}]
        image = account.invoke(GET_IMAGE, {"filters": names, "mostRecent": True, "owners": ["099720109477"]})
        return str(image["name"]).rpartition("-")[2]

    assert newest("202611", "202607", "2025") == "20261101"
    assert newest("202610", "202607", "2025") == "20260714"
