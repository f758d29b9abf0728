"""VPC endpoints: what an interface endpoint holds, and until when."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.polling import eventually
from tests.rehearsal.aws.conftest import Client

SSM = "com.amazonaws.us-east-1.ssm"


@pytest.fixture
def made(client: Client, name: str) -> dict[str, str]:
    """A VPC with DNS names, a subnet, a group."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.8.0.0/24", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=vpc)["GroupId"]
    return {"vpc": vpc, "subnet": subnet, "group": group}


def endpoint(client: Client, made: dict[str, str], **given: Any) -> dict[str, Any]:
    asked = {
        "VpcId": made["vpc"],
        "VpcEndpointType": "Interface",
        "ServiceName": SSM,
        "SubnetIds": [made["subnet"]],
        "SecurityGroupIds": [made["group"]],
        "PrivateDnsEnabled": True,
        **given,
    }
    return dict(client("ec2").create_vpc_endpoint(**asked)["VpcEndpoint"])


def found(client: Client, name: str) -> list[dict[str, Any]]:
    by_id = [{"Name": "vpc-endpoint-id", "Values": [name]}]
    return list(client("ec2").describe_vpc_endpoints(Filters=by_id)["VpcEndpoints"])


def available(client: Client, name: str) -> dict[str, Any]:
    eventually(lambda: found(client, name)[0]["State"] == "available", f"the endpoint {name}")
    return found(client, name)[0]


def test_an_interface_endpoint_has_an_interface_in_its_subnet(client: Client, made: dict[str, str]) -> None:
    one = available(client, endpoint(client, made)["VpcEndpointId"])
    assert (one["SubnetIds"], [group["GroupId"] for group in one["Groups"]]) == ([made["subnet"]], [made["group"]])
    (interface,) = client("ec2").describe_network_interfaces(NetworkInterfaceIds=one["NetworkInterfaceIds"])[
        "NetworkInterfaces"
    ]
    assert (interface["SubnetId"], interface["PrivateIpAddress"][:7]) == (made["subnet"], "10.8.0.")


def test_subnet_and_group_are_held_until_the_endpoint_is_gone(client: Client, made: dict[str, str]) -> None:
    ec2, name = client("ec2"), endpoint(client, made)["VpcEndpointId"]
    drops: list[Callable[[], Any]] = [
        lambda: ec2.delete_subnet(SubnetId=made["subnet"]),
        lambda: ec2.delete_security_group(GroupId=made["group"]),
    ]
    ec2.delete_vpc_endpoints(VpcEndpointIds=[name])
    assert found(client, name)[0]["State"] == "deleting"
    for drop in drops:
        with pytest.raises(ClientError, match="DependencyViolation"):
            drop()
    eventually(lambda: not found(client, name), "the endpoint's end")
    for drop in drops:
        drop()


WRONG: dict[str, dict[str, Any]] = {
    "a gateway of a service that has none": {"VpcEndpointType": "Gateway", "SubnetIds": [], "SecurityGroupIds": []},
    "another VPC's group": {"SecurityGroupIds": ["sg-00000000000000000"]},
    "a route table": {"RouteTableIds": ["rtb-00000000000000000"]},
}


@pytest.mark.parametrize("case", WRONG)
def test_ec2_refuses(client: Client, made: dict[str, str], case: str) -> None:
    with pytest.raises(ClientError, match=r"InvalidParameter|InvalidSecurityGroupId\.NotFound"):
        endpoint(client, made, **WRONG[case])


def test_private_names_need_the_vpcs_host_names(client: Client, made: dict[str, str]) -> None:
    client("ec2").modify_vpc_attribute(VpcId=made["vpc"], EnableDnsHostnames={"Value": False})
    with pytest.raises(ClientError, match="enableDnsHostnames"):
        endpoint(client, made)
    assert endpoint(client, made, PrivateDnsEnabled=False)


def test_its_interfaces_follow_a_change_of_subnets_and_groups(client: Client, made: dict[str, str], name: str) -> None:
    ec2, endpoint_id = client("ec2"), endpoint(client, made)["VpcEndpointId"]
    other = ec2.create_subnet(VpcId=made["vpc"], CidrBlock="10.8.1.0/24", AvailabilityZone="us-east-1b")["Subnet"]
    group = ec2.create_security_group(GroupName=f"{name}-2", Description="x", VpcId=made["vpc"])["GroupId"]
    ec2.modify_vpc_endpoint(
        VpcEndpointId=endpoint_id,
        AddSubnetIds=[other["SubnetId"]],
        RemoveSubnetIds=[made["subnet"]],
        AddSecurityGroupIds=[group],
        RemoveSecurityGroupIds=[made["group"]],
    )
    (one,) = found(client, endpoint_id)
    assert (one["SubnetIds"], [each["GroupId"] for each in one["Groups"]]) == ([other["SubnetId"]], [group])
    ec2.delete_subnet(SubnetId=made["subnet"])
    ec2.delete_security_group(GroupId=made["group"])
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=other["SubnetId"])
