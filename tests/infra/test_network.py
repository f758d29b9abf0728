"""The VPC and its security groups."""

from collections.abc import Callable
from ipaddress import IPv4Network

from rehearsal.adapter.graph import Deployment

INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
SUBNET = "aws:ec2/subnet:Subnet"


def test_subnets_are_the_two_halves_of_the_range_in_one_zone(each: Deployment) -> None:
    private, public = (each.one(SUBNET, name).inputs for name in ("private", "public"))
    halves = [IPv4Network(subnet["cidrBlock"]) for subnet in (private, public)]
    assert halves == list(IPv4Network("10.42.0.0/16").subnets(1))
    assert private["availabilityZone"] == public["availabilityZone"] == "us-east-1a"


def test_zone_that_we_chose_is_pinned(local: Deployment) -> None:
    assert local.one(SUBNET, "private").ignore_changes == ("availabilityZone",)


def test_zone_that_the_user_chose_is_followed(changed: Callable[..., Deployment]) -> None:
    subnet = changed(network={"zone": "us-east-1b"}).one(SUBNET, "private")
    assert subnet.inputs["availabilityZone"] == "us-east-1b"
    assert not subnet.ignore_changes


def test_private_subnet_reaches_the_world_through_nat_and_s3_through_the_endpoint(each: Deployment) -> None:
    table = each.one("aws:ec2/routeTable:RouteTable", "private")
    route = each.one("aws:ec2/route:Route", "private").inputs
    assert route["routeTableId"] == table.id
    assert route["natGatewayId"] == each.one("aws:ec2/natGateway:NatGateway", "nat").id
    assert each.one("aws:ec2/vpcEndpoint:VpcEndpoint", "s3").inputs["routeTableIds"] == [table.id]


def test_no_rule_lets_anything_in_from_outside(each: Deployment) -> None:
    rules = each.of_type(INGRESS)
    assert rules
    assert all("referencedSecurityGroupId" in rule.inputs and "cidrIpv4" not in rule.inputs for rule in rules)
    for group in each.of_type("aws:ec2/securityGroup:SecurityGroup"):
        assert not {"ingress", "egress"} & group.inputs.keys()


def test_nodes_talk_to_each_other_and_out(each: Deployment) -> None:
    nodes = each.one("aws:ec2/securityGroup:SecurityGroup", "nodes").id
    among = each.one(INGRESS, "nodes-from-nodes").inputs
    assert (among["securityGroupId"], among["referencedSecurityGroupId"], among["ipProtocol"]) == (nodes, nodes, "-1")
    out = each.one(EGRESS, "nodes-to-world").inputs
    assert (out["securityGroupId"], out["cidrIpv4"], out["ipProtocol"]) == (nodes, "0.0.0.0/0", "-1")


def test_efa_group_admits_itself_both_ways(gpu: Deployment) -> None:
    efa = gpu.one("aws:ec2/securityGroup:SecurityGroup", "efa").id
    for rule in (gpu.one(INGRESS, "efa-from-efa"), gpu.one(EGRESS, "efa-to-efa")):
        given = rule.inputs
        assert given["securityGroupId"] == given["referencedSecurityGroupId"] == efa
        assert given["ipProtocol"] == "-1"
        assert "fromPort" not in given


def test_lustre_ports_are_open_between_nodes_and_file_system_only(gpu: Deployment) -> None:
    nodes, fsx = (gpu.one("aws:ec2/securityGroup:SecurityGroup", name).id for name in ("nodes", "fsx"))
    admitted = {
        (
            rule.inputs["referencedSecurityGroupId"],
            rule.inputs["ipProtocol"],
            rule.inputs["fromPort"],
            rule.inputs["toPort"],
        )
        for rule in gpu.of_type(INGRESS)
        if rule.inputs["securityGroupId"] == fsx
    }
    assert admitted == {(peer, "tcp", *ports) for peer in (nodes, fsx) for ports in ((988, 988), (1018, 1023))}


def test_without_efa_and_fsx_there_are_no_groups_for_them(local: Deployment) -> None:
    assert [group.name for group in local.of_type("aws:ec2/securityGroup:SecurityGroup")] == ["nodes"]
