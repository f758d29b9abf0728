"""A whole network, made and deleted as AWS allows: in the right order nothing stays, in a wrong one it refuses."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network


@dataclass
class Made:
    """A VPC as the program makes one."""

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


def make(client: Client) -> Made:
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
    return Made(vpc, gateway, public, private, group, address, nat, table, association, endpoint)


def deletions(client: Client, made: Made) -> dict[str, Callable[[], Any]]:
    """Every deletion, in an order that AWS takes."""
    ec2 = client("ec2")
    return {
        "endpoint": lambda: ec2.delete_vpc_endpoints(VpcEndpointIds=[made.endpoint]),
        "association": lambda: ec2.disassociate_route_table(AssociationId=made.association),
        "table": lambda: ec2.delete_route_table(RouteTableId=made.table),
        "nat": lambda: ec2.delete_nat_gateway(NatGatewayId=made.nat),
        "address": lambda: ec2.release_address(AllocationId=made.address),
        "group": lambda: ec2.delete_security_group(GroupId=made.group),
        "private": lambda: ec2.delete_subnet(SubnetId=made.private),
        "public": lambda: ec2.delete_subnet(SubnetId=made.public),
        "detach": lambda: ec2.detach_internet_gateway(InternetGatewayId=made.gateway, VpcId=made.vpc),
        "gateway": lambda: ec2.delete_internet_gateway(InternetGatewayId=made.gateway),
        "vpc": lambda: ec2.delete_vpc(VpcId=made.vpc),
    }


@pytest.fixture(scope="module")
def whole(client: Client) -> Iterator[Made]:
    made = make(client)
    yield made
    for delete in deletions(client, made).values():
        delete()


def test_deleted_in_order_nothing_stays(client: Client, aws: EmulatedAws) -> None:
    before = aws.dump()
    made = make(client)
    assert len(aws.dump()) - len(before) >= len(fields(Made)) - 1
    for delete in deletions(client, made).values():
        delete()
    assert aws.dump() == before


@pytest.mark.parametrize("early", ["table", "address", "public", "detach", "gateway", "vpc"])
def test_deleted_too_early_it_is_refused(client: Client, aws: EmulatedAws, whole: Made, early: str) -> None:
    before = aws.dump()
    with pytest.raises(ClientError, match=r"DependencyViolation|InvalidIPAddress\.InUse"):
        deletions(client, whole)[early]()
    assert aws.dump() == before


def test_a_vpc_with_nothing_but_a_group_is_kept(client: Client, name: str) -> None:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.2.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=vpc)["GroupId"]
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_vpc(VpcId=vpc)
    ec2.delete_security_group(GroupId=group)
    ec2.delete_vpc(VpcId=vpc)


def test_a_subnet_with_an_instance_is_kept(client: Client, network: Network) -> None:
    ec2 = client("ec2")
    ids = {"ImageId": network.image, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1}
    ec2.run_instances(**ids, SubnetId=network.subnet, SecurityGroupIds=[network.group])
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=network.subnet)
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=network.group)


def test_a_group_that_another_s_rule_names_is_kept(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    first, second = (
        ec2.create_security_group(GroupName=f"{name}-{side}", Description="x", VpcId=network.vpc)["GroupId"]
        for side in ("a", "b")
    )
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": first}]}]
    ec2.authorize_security_group_ingress(GroupId=second, IpPermissions=rule)
    ec2.authorize_security_group_ingress(GroupId=first, IpPermissions=rule)  # naming itself is no hindrance
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=first)
    ec2.delete_security_group(GroupId=second)
    ec2.delete_security_group(GroupId=first)


def test_rules_have_ids_by_which_they_are_found_and_revoked(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=network.vpc)["GroupId"]
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    for authorize, egress in (
        (ec2.authorize_security_group_ingress, False),
        (ec2.authorize_security_group_egress, True),
    ):
        (made,) = authorize(GroupId=group, IpPermissions=rule)["SecurityGroupRules"]
        wanted = [made["SecurityGroupRuleId"]]
        (found,) = ec2.describe_security_group_rules(SecurityGroupRuleIds=wanted)["SecurityGroupRules"]
        assert (found["IsEgress"], found["ReferencedGroupInfo"]["GroupId"]) == (egress, group)
        revoke = ec2.revoke_security_group_egress if egress else ec2.revoke_security_group_ingress
        revoke(GroupId=group, SecurityGroupRuleIds=wanted)
        filters = [{"Name": "group-id", "Values": [group]}]
        left = ec2.describe_security_group_rules(Filters=filters)["SecurityGroupRules"]
        assert wanted[0] not in [each["SecurityGroupRuleId"] for each in left]


def test_a_rule_that_is_there_is_refused_whatever_its_description(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=network.vpc)["GroupId"]

    def authorize(description: str) -> Any:
        pair = {"GroupId": group, "Description": description}
        rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "UserIdGroupPairs": [pair]}
        return ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])["SecurityGroupRules"]

    (made,) = authorize("Lustre")
    assert made["Description"] == "Lustre"
    with pytest.raises(ClientError, match=r"InvalidPermission\.Duplicate"):
        authorize("again")


def test_all_rules_of_a_call_are_in_its_answer(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    group = ec2.create_security_group(GroupName=name, Description="x", VpcId=network.vpc)["GroupId"]
    rules = [
        {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "UserIdGroupPairs": [{"GroupId": group}]}
        for port in (988, 1018)
    ]
    made = ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rules)["SecurityGroupRules"]
    assert [rule["FromPort"] for rule in made] == [988, 1018]


def test_a_nat_gateway_has_an_address_of_its_subnet(client: Client, whole: Made) -> None:
    (gateway,) = client("ec2").describe_nat_gateways(NatGatewayIds=[whole.nat])["NatGateways"]
    assert gateway["NatGatewayAddresses"][0]["PrivateIp"].startswith("10.1.0.")


def test_an_interface_in_use_is_kept(client: Client, network: Network) -> None:
    ec2 = client("ec2")
    ids = {"ImageId": network.image, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1}
    (instance,) = ec2.run_instances(**ids, SubnetId=network.subnet)["Instances"]
    with pytest.raises(ClientError, match="currently in use"):
        ec2.delete_network_interface(NetworkInterfaceId=instance["NetworkInterfaces"][0]["NetworkInterfaceId"])


def test_a_vpc_takes_one_internet_gateway(client: Client, whole: Made) -> None:
    ec2 = client("ec2")
    second = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    told = rf"\(InvalidParameterValue\).* Network {whole.vpc} already has an internet gateway attached"
    with pytest.raises(ClientError, match=told):
        ec2.attach_internet_gateway(InternetGatewayId=second, VpcId=whole.vpc)
    ec2.delete_internet_gateway(InternetGatewayId=second)


def test_a_gateway_that_is_attached_is_not_attached_again(client: Client, whole: Made) -> None:
    with pytest.raises(ClientError, match=r"\(Resource\.AlreadyAssociated\)"):
        client("ec2").attach_internet_gateway(InternetGatewayId=whole.gateway, VpcId=whole.vpc)
