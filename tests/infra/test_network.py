"""The VPC, its endpoints, flow logs and security groups, or the network that is given in its place."""

import json
from collections.abc import Callable
from ipaddress import IPv4Network

from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.static_ec2 import RESERVATION, VPC, reservation
from rehearsal.adapter.static_ec2 import SUBNET as SUBNET_ID
from tests.infra.conftest import ECR_IMAGE, head_of, with_container

INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
SUBNET = "aws:ec2/subnet:Subnet"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"


def test_subnets_are_the_two_halves_of_the_range_in_one_zone(shipped: Deployment) -> None:
    private, public = (shipped.one(SUBNET, name).inputs for name in ("private", "public"))
    halves = [IPv4Network(subnet["cidrBlock"]) for subnet in (private, public)]
    assert halves == list(IPv4Network("10.42.0.0/16").subnets(1))
    assert private["availabilityZone"] == public["availabilityZone"]
    assert private["availabilityZone"].startswith("us-east-1")


def test_zone_that_we_chose_is_pinned(local: Deployment) -> None:
    assert local.one(SUBNET, "private").ignore_changes == ("availabilityZone",)


def test_zone_that_the_user_chose_is_followed(changed: Callable[..., Deployment]) -> None:
    subnet = changed(network={"zone": "us-east-1b"}).one(SUBNET, "private")
    assert subnet.inputs["availabilityZone"] == "us-east-1b"
    assert not subnet.ignore_changes


def test_zone_that_a_reservation_decides_is_followed(changed: Callable[..., Deployment]) -> None:
    """The next Capacity Block may be in another zone: a subnet that stayed behind could launch nothing into it."""
    for zone in ("us-east-1b", "us-east-1c"):
        there = {RESERVATION: reservation(AvailabilityZone=zone)}
        subnet = changed("h200-cluster", account={"reservations": there}).one(SUBNET, "private")
        assert subnet.inputs["availabilityZone"] == zone
        assert not subnet.ignore_changes


def test_subnet_of_another_zone_takes_the_place_of_the_first(shipped: Deployment) -> None:
    """Both have the same range, and the VPC has room for one."""
    assert all(subnet.delete_before_replace for subnet in shipped.of_type(SUBNET))


def test_private_subnet_reaches_the_world_through_nat_and_s3_through_the_endpoint(shipped: Deployment) -> None:
    table = shipped.one("aws:ec2/routeTable:RouteTable", "private")
    route = shipped.one("aws:ec2/route:Route", "private").inputs
    assert route["routeTableId"] == table.id
    assert route["natGatewayId"] == shipped.one("aws:ec2/natGateway:NatGateway", "nat").id
    assert shipped.one("aws:ec2/vpcEndpoint:VpcEndpoint", "s3").inputs["routeTableIds"] == [table.id]


def test_no_rule_lets_anything_in_from_outside(shipped: Deployment) -> None:
    rules = shipped.of_type(INGRESS)
    assert rules
    assert all("referencedSecurityGroupId" in rule.inputs and "cidrIpv4" not in rule.inputs for rule in rules)
    for group in shipped.of_type("aws:ec2/securityGroup:SecurityGroup"):
        assert not {"ingress", "egress"} & group.inputs.keys()


def test_nodes_talk_to_each_other_and_out(shipped: Deployment) -> None:
    nodes = shipped.one("aws:ec2/securityGroup:SecurityGroup", "nodes").id
    among = shipped.one(INGRESS, "nodes-from-nodes").inputs
    assert (among["securityGroupId"], among["referencedSecurityGroupId"], among["ipProtocol"]) == (nodes, nodes, "-1")
    out = shipped.one(EGRESS, "nodes-to-world").inputs
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
    assert [group.name for group in local.of_type("aws:ec2/securityGroup:SecurityGroup")] == ["nodes", "endpoints"]


def test_interface_endpoints_of_session_manager_answer_to_nodes_by_https_alone(shipped: Deployment) -> None:
    interfaces = [one.inputs for one in shipped.of_type(ENDPOINT) if one.inputs["vpcEndpointType"] == "Interface"]
    services = {one["serviceName"].removeprefix("com.amazonaws.us-east-1.") for one in interfaces}
    assert services == {"ssm", "ssmmessages"}
    group = shipped.one("aws:ec2/securityGroup:SecurityGroup", "endpoints").id
    for one in interfaces:
        assert one["securityGroupIds"] == [group]
        assert one["privateDnsEnabled"] is True
    (rule,) = [one.inputs for one in shipped.of_type(INGRESS) if one.inputs["securityGroupId"] == group]
    nodes = shipped.one("aws:ec2/securityGroup:SecurityGroup", "nodes").id
    assert (rule["referencedSecurityGroupId"], rule["fromPort"], rule["toPort"]) == (nodes, 443, 443)


def test_flow_logs_are_kept_under_the_stacks_key_by_a_role_that_writes_there_only(shipped: Deployment) -> None:
    group = shipped.one("aws:cloudwatch/logGroup:LogGroup", "flow-logs")
    assert group.inputs["retentionInDays"] == 30
    assert group.inputs["kmsKeyId"] == shipped.one("aws:kms/key:Key", "stack-key").outputs["arn"]
    log = shipped.one("aws:ec2/flowLog:FlowLog", "flow-logs").inputs
    assert (log["trafficType"], log["logDestination"]) == ("ALL", group.outputs["arn"])
    policy = json.loads(shipped.one("aws:iam/rolePolicy:RolePolicy", "flow-logs").inputs["policy"])
    assert [one["Resource"] for one in policy["Statement"]] == [[f"{group.outputs['arn']}:*"]]


def test_flow_logs_can_be_declined(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"flow_logs_days": None})
    assert not run.of_type("aws:ec2/flowLog:FlowLog")
    assert not run.of_type("aws:cloudwatch/logGroup:LogGroup")


def test_without_nat_nothing_leaves_and_every_service_that_nodes_call_has_an_endpoint(
    changed: Callable[..., Deployment],
) -> None:
    run = changed(network={"nat": False}, node={"package_index": "https://index.example.com/simple"})
    for kind in ("natGateway:NatGateway", "internetGateway:InternetGateway", "eip:Eip", "route:Route"):
        assert not run.of_type(f"aws:ec2/{kind}")
    assert [one.name for one in run.of_type(SUBNET)] == ["private"]
    names = {one.inputs["serviceName"].rpartition(".")[2] for one in run.of_type(ENDPOINT)}
    assert names == {"s3", "ssm", "ssmmessages", "autoscaling"}


def test_without_nat_an_image_comes_through_endpoints_of_its_registry(changed: Callable[..., Deployment]) -> None:
    def services(nat: bool) -> set[str]:
        node = {"package_index": "https://index.example.com/simple"}
        run = changed(network={"nat": nat}, node=node, job=with_container(ECR_IMAGE))
        return {one.inputs["serviceName"].removeprefix("com.amazonaws.us-east-1.") for one in run.of_type(ENDPOINT)}

    assert services(nat=False) == {"s3", "ssm", "ssmmessages", "autoscaling", "ecr.api", "ecr.dkr"}
    assert services(nat=True) == {"s3", "ssm", "ssmmessages"}


def test_network_that_is_there_is_used_and_not_changed(changed: Callable[..., Deployment]) -> None:
    given = {"vpc_id": VPC, "subnet_id": SUBNET_ID}
    run = changed(network={"existing": given})
    for kind in ("vpc:Vpc", "subnet:Subnet", "routeTable:RouteTable", "vpcEndpoint:VpcEndpoint", "flowLog:FlowLog"):
        assert not run.of_type(f"aws:ec2/{kind}")
    assert {one.inputs["vpcId"] for one in run.of_type("aws:ec2/securityGroup:SecurityGroup")} == {VPC}
    assert head_of(run)["subnetId"] == SUBNET_ID
    assert run.one("aws:autoscaling/group:Group", "workers").inputs["vpcZoneIdentifiers"] == [SUBNET_ID]
