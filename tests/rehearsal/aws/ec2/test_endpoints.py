"""VPC endpoints: network interfaces of interface endpoints, and their dependencies."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.polling import eventually
from tests.rehearsal.aws.conftest import Client

SSM = "com.amazonaws.us-east-1.ssm"


@pytest.fixture
def vpc_network(client: Client, name: str) -> dict[str, str]:
    """A VPC with DNS host names, a subnet and a security group."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.8.0.0/24", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=vpc)["GroupId"]
    return {"vpc": vpc, "subnet": subnet, "group": group}


def create_endpoint(client: Client, vpc_network: dict[str, str], **overrides: Any) -> dict[str, Any]:
    parameters = {
        "VpcId": vpc_network["vpc"],
        "VpcEndpointType": "Interface",
        "ServiceName": SSM,
        "SubnetIds": [vpc_network["subnet"]],
        "SecurityGroupIds": [vpc_network["group"]],
        "PrivateDnsEnabled": True,
        **overrides,
    }
    return dict(client("ec2").create_vpc_endpoint(**parameters)["VpcEndpoint"])


def describe(client: Client, name: str) -> list[dict[str, Any]]:
    by_id = [{"Name": "vpc-endpoint-id", "Values": [name]}]
    return list(client("ec2").describe_vpc_endpoints(Filters=by_id)["VpcEndpoints"])


def available(client: Client, name: str) -> dict[str, Any]:
    eventually(lambda: describe(client, name)[0]["State"] == "available", f"the endpoint {name}")
    return describe(client, name)[0]


def test_interface_endpoint_has_an_interface_in_the_subnet(client: Client, vpc_network: dict[str, str]) -> None:
    described = available(client, create_endpoint(client, vpc_network)["VpcEndpointId"])
    assert (described["SubnetIds"], [group["GroupId"] for group in described["Groups"]]) == (
        [vpc_network["subnet"]],
        [vpc_network["group"]],
    )
    (interface,) = client("ec2").describe_network_interfaces(NetworkInterfaceIds=described["NetworkInterfaceIds"])[
        "NetworkInterfaces"
    ]
    assert (interface["SubnetId"], interface["PrivateIpAddress"][:7]) == (vpc_network["subnet"], "10.8.0.")


def test_subnet_and_group_cannot_be_deleted_before_the_endpoint(client: Client, vpc_network: dict[str, str]) -> None:
    ec2, name = client("ec2"), create_endpoint(client, vpc_network)["VpcEndpointId"]
    drops: list[Callable[[], Any]] = [
        lambda: ec2.delete_subnet(SubnetId=vpc_network["subnet"]),
        lambda: ec2.delete_security_group(GroupId=vpc_network["group"]),
    ]
    ec2.delete_vpc_endpoints(VpcEndpointIds=[name])
    assert describe(client, name)[0]["State"] == "deleting"
    for drop in drops:
        with pytest.raises(ClientError, match="DependencyViolation"):
            drop()
    eventually(lambda: not describe(client, name), "the endpoint's end")
    for drop in drops:
        drop()


WRONG: dict[str, dict[str, Any]] = {
    "a gateway of a service that has none": {"VpcEndpointType": "Gateway", "SubnetIds": [], "SecurityGroupIds": []},
    "another VPC's group": {"SecurityGroupIds": ["sg-00000000000000000"]},
    "a route table": {"RouteTableIds": ["rtb-00000000000000000"]},
}


@pytest.mark.parametrize("case", WRONG)
def test_ec2_refuses(client: Client, vpc_network: dict[str, str], case: str) -> None:
    with pytest.raises(ClientError, match=r"InvalidParameter|InvalidSecurityGroupId\.NotFound"):
        create_endpoint(client, vpc_network, **WRONG[case])


def test_private_dns_requires_dns_host_names_of_the_vpc(client: Client, vpc_network: dict[str, str]) -> None:
    client("ec2").modify_vpc_attribute(VpcId=vpc_network["vpc"], EnableDnsHostnames={"Value": False})
    with pytest.raises(ClientError, match="enableDnsHostnames"):
        create_endpoint(client, vpc_network)
    assert create_endpoint(client, vpc_network, PrivateDnsEnabled=False)


def test_endpoint_interfaces_follow_changes_of_subnets_and_groups(
    client: Client, vpc_network: dict[str, str], name: str
) -> None:
    ec2, endpoint_id = client("ec2"), create_endpoint(client, vpc_network)["VpcEndpointId"]
    other = ec2.create_subnet(VpcId=vpc_network["vpc"], CidrBlock="10.8.1.0/24", AvailabilityZone="us-east-1b")[
        "Subnet"
    ]
    group = ec2.create_security_group(GroupName=f"{name}-2", Description="x", VpcId=vpc_network["vpc"])["GroupId"]
    ec2.modify_vpc_endpoint(
        VpcEndpointId=endpoint_id,
        AddSubnetIds=[other["SubnetId"]],
        RemoveSubnetIds=[vpc_network["subnet"]],
        AddSecurityGroupIds=[group],
        RemoveSecurityGroupIds=[vpc_network["group"]],
    )
    (described,) = describe(client, endpoint_id)
    assert (described["SubnetIds"], [entry["GroupId"] for entry in described["Groups"]]) == (
        [other["SubnetId"]],
        [group],
    )
    ec2.delete_subnet(SubnetId=vpc_network["subnet"])
    ec2.delete_security_group(GroupId=vpc_network["group"])
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=other["SubnetId"])
