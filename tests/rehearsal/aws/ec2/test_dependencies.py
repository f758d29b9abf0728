"""A complete network: deletion succeeds in the right order and fails with DependencyViolation in a wrong order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network


@dataclass
class Resources:
    """The resources of a network, as the Pulumi program creates them."""

    vpc: str
    gateway: str
    public: str
    private: str
    group: str
    address: str
    nat: str
    table: str
    association: str
    endpoint: str


def make(client: Client) -> Resources:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    public = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24")["Subnet"]["SubnetId"]
    private = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.1.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=public, AllocationId=address)["NatGateway"]["NatGatewayId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    association = ec2.associate_route_table(RouteTableId=table, SubnetId=private)["AssociationId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    endpoint = ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName="com.amazonaws.us-east-1.s3", VpcEndpointType="Gateway", RouteTableIds=[table]
    )["VpcEndpoint"]["VpcEndpointId"]
    return Resources(vpc, gateway, public, private, group, address, nat, table, association, endpoint)


def deletions(client: Client, resources: Resources) -> dict[str, Callable[[], Any]]:
    """Return every deletion, in an order that AWS accepts."""
    ec2 = client("ec2")
    return {
        "endpoint": lambda: ec2.delete_vpc_endpoints(VpcEndpointIds=[resources.endpoint]),
        "association": lambda: ec2.disassociate_route_table(AssociationId=resources.association),
        "table": lambda: ec2.delete_route_table(RouteTableId=resources.table),
        "nat": lambda: ec2.delete_nat_gateway(NatGatewayId=resources.nat),
        "address": lambda: ec2.release_address(AllocationId=resources.address),
        "group": lambda: ec2.delete_security_group(GroupId=resources.group),
        "private": lambda: ec2.delete_subnet(SubnetId=resources.private),
        "public": lambda: ec2.delete_subnet(SubnetId=resources.public),
        "detach": lambda: ec2.detach_internet_gateway(InternetGatewayId=resources.gateway, VpcId=resources.vpc),
        "gateway": lambda: ec2.delete_internet_gateway(InternetGatewayId=resources.gateway),
        "vpc": lambda: ec2.delete_vpc(VpcId=resources.vpc),
    }


@pytest.fixture(scope="module")
def network_resources(client: Client) -> Iterator[Resources]:
    resources = make(client)
    yield resources
    for delete in deletions(client, resources).values():
        delete()


def test_deletion_in_order_removes_everything(client: Client, aws: EmulatedAws) -> None:
    before = aws.list_resources()
    resources = make(client)
    assert len(aws.list_resources()) - len(before) >= len(fields(Resources)) - 1
    for delete in deletions(client, resources).values():
        delete()
    assert aws.list_resources() == before


@pytest.mark.parametrize("early", ["table", "address", "public", "detach", "gateway", "vpc"])
def test_deletion_with_dependencies_is_refused(
    client: Client, aws: EmulatedAws, network_resources: Resources, early: str
) -> None:
    before = aws.list_resources()
    with pytest.raises(ClientError, match=r"DependencyViolation|InvalidIPAddress\.InUse"):
        deletions(client, network_resources)[early]()
    assert aws.list_resources() == before


def test_vpc_with_a_security_group_cannot_be_deleted(client: Client, name: str) -> None:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.2.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=vpc)["GroupId"]
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_vpc(VpcId=vpc)
    ec2.delete_security_group(GroupId=group)
    ec2.delete_vpc(VpcId=vpc)


def test_subnet_with_an_instance_cannot_be_deleted(client: Client, network: Network) -> None:
    ec2 = client("ec2")
    ids = {"ImageId": network.image, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1}
    ec2.run_instances(**ids, SubnetId=network.subnet, SecurityGroupIds=[network.group])
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=network.subnet)
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=network.group)


def test_security_group_referenced_by_a_rule_cannot_be_deleted(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    first, second = (
        ec2.create_security_group(GroupName=f"{name}-{side}", Description="x", VpcId=network.vpc)["GroupId"]
        for side in ("a", "b")
    )
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": first}]}]
    ec2.authorize_security_group_ingress(GroupId=second, IpPermissions=rule)
    ec2.authorize_security_group_ingress(GroupId=first, IpPermissions=rule)  # a reference to itself is no dependency
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=first)
    ec2.delete_security_group(GroupId=second)
    ec2.delete_security_group(GroupId=first)


def test_rules_can_be_described_and_revoked_by_id(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=network.vpc)["GroupId"]
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    for authorize, egress in (
        (ec2.authorize_security_group_ingress, False),
        (ec2.authorize_security_group_egress, True),
    ):
        (resources,) = authorize(GroupId=group, IpPermissions=rule)["SecurityGroupRules"]
        rule_ids = [resources["SecurityGroupRuleId"]]
        (described,) = ec2.describe_security_group_rules(SecurityGroupRuleIds=rule_ids)["SecurityGroupRules"]
        assert (described["IsEgress"], described["ReferencedGroupInfo"]["GroupId"]) == (egress, group)
        revoke = ec2.revoke_security_group_egress if egress else ec2.revoke_security_group_ingress
        revoke(GroupId=group, SecurityGroupRuleIds=rule_ids)
        filters = [{"Name": "group-id", "Values": [group]}]
        remaining = ec2.describe_security_group_rules(Filters=filters)["SecurityGroupRules"]
        assert rule_ids[0] not in [rule_entry["SecurityGroupRuleId"] for rule_entry in remaining]


def test_duplicate_rule_is_refused_despite_another_description(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=network.vpc)["GroupId"]

    def authorize(description: str) -> Any:
        pair = {"GroupId": group, "Description": description}
        rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "UserIdGroupPairs": [pair]}
        return ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])["SecurityGroupRules"]

    (resources,) = authorize("Lustre")
    assert resources["Description"] == "Lustre"
    with pytest.raises(ClientError, match=r"InvalidPermission\.Duplicate"):
        authorize("again")


def test_response_contains_all_authorized_rules(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=network.vpc)["GroupId"]
    rules = [
        {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "UserIdGroupPairs": [{"GroupId": group}]}
        for port in (988, 1018)
    ]
    resources = ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rules)["SecurityGroupRules"]
    assert [rule["FromPort"] for rule in resources] == [988, 1018]


def test_nat_gateway_has_an_address_of_the_subnet(client: Client, network_resources: Resources) -> None:
    (gateway,) = client("ec2").describe_nat_gateways(NatGatewayIds=[network_resources.nat])["NatGateways"]
    assert gateway["NatGatewayAddresses"][0]["PrivateIp"].startswith("10.1.0.")


def test_interface_in_use_cannot_be_deleted(client: Client, network: Network) -> None:
    ec2 = client("ec2")
    ids = {"ImageId": network.image, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1}
    (instance,) = ec2.run_instances(**ids, SubnetId=network.subnet)["Instances"]
    with pytest.raises(ClientError, match="currently in use"):
        ec2.delete_network_interface(NetworkInterfaceId=instance["NetworkInterfaces"][0]["NetworkInterfaceId"])


def test_vpc_accepts_one_internet_gateway(client: Client, network_resources: Resources) -> None:
    ec2 = client("ec2")
    second = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    message = rf"\(InvalidParameterValue\).* Network {network_resources.vpc} already has an internet gateway attached"
    with pytest.raises(ClientError, match=message):
        ec2.attach_internet_gateway(InternetGatewayId=second, VpcId=network_resources.vpc)
    ec2.delete_internet_gateway(InternetGatewayId=second)


def test_attached_gateway_cannot_be_attached_again(client: Client, network_resources: Resources) -> None:
    with pytest.raises(ClientError, match=r"\(Resource\.AlreadyAssociated\)"):
        client("ec2").attach_internet_gateway(InternetGatewayId=network_resources.gateway, VpcId=network_resources.vpc)


def test_nat_gateways_are_filtered_by_tag(client: Client, network_resources: Resources) -> None:
    ec2 = client("ec2")
    ec2.create_tags(Resources=[network_resources.nat], Tags=[{"Key": "stack", "Value": "first"}])

    def with_tag(value: str) -> list[str]:
        response = ec2.describe_nat_gateways(Filters=[{"Name": "tag:stack", "Values": [value]}])
        return [gateway["NatGatewayId"] for gateway in response["NatGateways"]]

    assert with_tag("first") == [network_resources.nat]
    assert with_tag("second") == []
