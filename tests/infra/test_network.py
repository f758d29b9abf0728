"""VPC, endpoints, flow logs and security groups, and existing networks."""

import json
from collections.abc import Callable
from ipaddress import IPv4Network
from itertools import combinations
from typing import Any

from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.static_ec2 import RESERVATION, VPC, reservation_properties
from rehearsal.adapter.static_ec2 import SUBNET as SUBNET_ID
from tests.infra.conftest import ECR_IMAGE, GROUP, head_template_of, with_container
from trainyard.models.connection import AGENT_PORT

INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
SUBNET = "aws:ec2/subnet:Subnet"
DEFAULT_GROUP = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"


def test_subnets_of_the_head_are_eighths_of_the_cidr_in_one_zone(shipped: Deployment) -> None:
    private, public = (shipped.resource(SUBNET, name).inputs for name in ("network-private", "network-public"))
    eighths = [IPv4Network(subnet["cidrBlock"]) for subnet in (private, public)]
    assert eighths == list(IPv4Network("10.42.0.0/16").subnets(3))[:2]
    assert private["availabilityZone"] == public["availabilityZone"]
    assert private["availabilityZone"].startswith("us-east-1")


def test_default_zone_is_pinned(local: Deployment) -> None:
    assert local.resource(SUBNET, "network-private").ignore_changes == ("availabilityZone",)


def test_workers_have_a_subnet_in_each_zone_that_offers_their_type(changed: Callable[..., Deployment]) -> None:
    run = changed(account={"instance_type_zones": {"c7i.xlarge": ["us-east-1b", "us-east-1c"]}})
    subnets = [subnet for subnet in run.resources_of_type(SUBNET) if subnet.name.startswith("network-private")]
    zones = [subnet.inputs["availabilityZone"] for subnet in subnets]
    assert zones == ["us-east-1b", "us-east-1c"]
    blocks = [IPv4Network(subnet.inputs["cidrBlock"]) for subnet in run.resources_of_type(SUBNET)]
    assert not any(first.overlaps(second) for first, second in combinations(blocks, 2))


def test_zone_keeps_its_block_when_another_is_removed(changed: Callable[..., Deployment]) -> None:
    def block(zones: list[str]) -> str:
        return str(changed(capacity={"zones": zones}).resource(SUBNET, "network-private-c").inputs["cidrBlock"])

    assert block(["us-east-1a", "us-east-1b", "us-east-1c"]) == block(["us-east-1a", "us-east-1c"])


def test_file_system_keeps_workers_in_its_zone(changed: Callable[..., Deployment]) -> None:
    run = changed("a100-cluster")
    assert [subnet.name for subnet in run.resources_of_type(SUBNET) if subnet.name.startswith("network-private-")] == []


def test_configured_zone_is_not_pinned(changed: Callable[..., Deployment]) -> None:
    subnet = changed(capacity={"zones": ["us-east-1b"]}).resource(SUBNET, "network-private")
    assert subnet.inputs["availabilityZone"] == "us-east-1b"
    assert not subnet.ignore_changes


def test_zone_of_a_reservation_is_not_pinned(changed: Callable[..., Deployment]) -> None:
    """The next Capacity Block may be in another zone, where an old subnet could not launch."""
    for zone in ("us-east-1b", "us-east-1c"):
        reservations = {RESERVATION: reservation_properties(AvailabilityZone=zone)}
        subnet = changed("h200-cluster", account={"reservations": reservations}).resource(SUBNET, "network-private")
        assert subnet.inputs["availabilityZone"] == zone
        assert not subnet.ignore_changes


def test_subnets_are_deleted_before_replacement(shipped: Deployment) -> None:
    """Old and new subnet have the same CIDR block."""
    assert all(subnet.delete_before_replace for subnet in shipped.resources_of_type(SUBNET))


def test_interface_endpoints_are_deleted_before_their_subnet(shipped: Deployment) -> None:
    """Their network interfaces would keep the old subnet when the head moves to another zone."""
    endpoints = [each for each in shipped.resources_of_type(ENDPOINT) if each.inputs["vpcEndpointType"] == "Interface"]
    assert endpoints
    assert all(endpoint.delete_before_replace for endpoint in endpoints)


def test_private_subnet_routes_to_nat_and_s3_endpoint(shipped: Deployment) -> None:
    table = shipped.resource("aws:ec2/routeTable:RouteTable", "network-private")
    route = shipped.resource("aws:ec2/route:Route", "network-private").inputs
    assert route["routeTableId"] == table.id
    assert route["natGatewayId"] == shipped.resource("aws:ec2/natGateway:NatGateway", "network-nat").id
    assert shipped.resource("aws:ec2/vpcEndpoint:VpcEndpoint", "endpoints-s3").inputs["routeTableIds"] == [table.id]


def test_no_rule_allows_inbound_from_outside(shipped: Deployment) -> None:
    rules = shipped.resources_of_type(INGRESS)
    assert rules
    assert all("referencedSecurityGroupId" in rule.inputs and "cidrIpv4" not in rule.inputs for rule in rules)
    for group in shipped.resources_of_type("aws:ec2/securityGroup:SecurityGroup"):
        assert not {"ingress", "egress"} & group.inputs.keys()


def test_nodes_reach_each_other_and_the_internet(shipped: Deployment) -> None:
    nodes = shipped.resource("aws:ec2/securityGroup:SecurityGroup", "security-nodes").id
    among = shipped.resource(INGRESS, "security-nodes-from-nodes").inputs
    assert (among["securityGroupId"], among["referencedSecurityGroupId"], among["ipProtocol"]) == (nodes, nodes, "-1")
    out = shipped.resource(EGRESS, "security-nodes-to-internet").inputs
    assert (out["securityGroupId"], out["cidrIpv4"], out["ipProtocol"]) == (nodes, "0.0.0.0/0", "-1")


def group_id(run: Deployment, name: str) -> str:
    """Id of a security group of the stack."""
    return run.resource("aws:ec2/securityGroup:SecurityGroup", f"security-{name}").id


def test_workers_reach_a_single_port_of_the_head(shipped: Deployment) -> None:
    groups = {name: group_id(shipped, name) for name in ("head", "nodes")}
    rules = [each.inputs for each in shipped.resources_of_type(INGRESS)]
    (rule,) = [each for each in rules if each["securityGroupId"] == groups["head"]]
    assert rule["referencedSecurityGroupId"] == groups["nodes"]
    assert (rule["ipProtocol"], rule["fromPort"], rule["toPort"]) == ("tcp", AGENT_PORT, AGENT_PORT)
    from_head = [each for each in rules if each["referencedSecurityGroupId"] == groups["head"]]
    assert not any(each["securityGroupId"] == groups["nodes"] for each in from_head)
    (interface,) = head_template_of(shipped).inputs["networkInterfaces"]
    assert interface["securityGroups"] == [groups["head"]]


def test_efa_group_allows_itself_in_both_directions(gpu: Deployment) -> None:
    efa = gpu.resource("aws:ec2/securityGroup:SecurityGroup", "security-efa").id
    for rule in (gpu.resource(INGRESS, "security-efa-from-efa"), gpu.resource(EGRESS, "security-efa-to-efa")):
        inputs = rule.inputs
        assert inputs["securityGroupId"] == inputs["referencedSecurityGroupId"] == efa
        assert inputs["ipProtocol"] == "-1"
        assert "fromPort" not in inputs


def test_lustre_ports_are_open_between_nodes_and_file_system_only(gpu: Deployment) -> None:
    nodes, fsx = (
        gpu.resource("aws:ec2/securityGroup:SecurityGroup", f"security-{name}").id for name in ("nodes", "fsx")
    )
    allowed = {
        (
            rule.inputs["referencedSecurityGroupId"],
            rule.inputs["ipProtocol"],
            rule.inputs["fromPort"],
            rule.inputs["toPort"],
        )
        for rule in gpu.resources_of_type(INGRESS)
        if rule.inputs["securityGroupId"] == fsx
    }
    assert allowed == {(peer, "tcp", *ports) for peer in (nodes, fsx) for ports in ((988, 988), (1018, 1023))}


def test_default_security_group_is_managed_without_rules(shipped: Deployment) -> None:
    group = shipped.resource(DEFAULT_GROUP, "network-default").inputs
    assert group["vpcId"] == shipped.resource("aws:ec2/vpc:Vpc", "network-vpc").id
    assert not {"ingress", "egress"} & group.keys()


def test_no_groups_without_efa_and_fsx(local: Deployment) -> None:
    assert [group.name for group in local.resources_of_type("aws:ec2/securityGroup:SecurityGroup")] == [
        "security-nodes",
        "security-head",
        "security-endpoints",
    ]


def test_session_manager_endpoints_allow_https_from_nodes_only(shipped: Deployment) -> None:
    interfaces = [
        each.inputs for each in shipped.resources_of_type(ENDPOINT) if each.inputs["vpcEndpointType"] == "Interface"
    ]
    services = {each["serviceName"].removeprefix("com.amazonaws.us-east-1.") for each in interfaces}
    assert services == {"ssm", "ssmmessages"}
    group = shipped.resource("aws:ec2/securityGroup:SecurityGroup", "security-endpoints").id
    for each in interfaces:
        assert each["securityGroupIds"] == [group]
        assert each["privateDnsEnabled"] is True
    rules = [each.inputs for each in shipped.resources_of_type(INGRESS) if each.inputs["securityGroupId"] == group]
    sources = {group_id(shipped, "nodes"), group_id(shipped, "head")}
    assert {(each["referencedSecurityGroupId"], each["fromPort"], each["toPort"]) for each in rules} == {
        (source, 443, 443) for source in sources
    }


def endpoint_statements(run: Deployment, service: str) -> dict[str, dict[str, Any]]:
    """The statements of an endpoint's policy, by their ids."""
    document = json.loads(run.resource(ENDPOINT, f"endpoints-{service}").inputs["policy"])
    return {each["Sid"]: each for each in document["Statement"]}


def test_endpoints_are_limited_to_the_account_and_named_buckets(shipped: Deployment) -> None:
    account = {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}
    for endpoint in shipped.resources_of_type(ENDPOINT):
        for statement in json.loads(endpoint.inputs["policy"])["Statement"]:
            if statement["Sid"] == "PublicBuckets":
                assert statement["Action"] == ["s3:GetObject"]
                assert not any(arn.startswith("arn:aws:s3:::*") for arn in statement["Resource"])
            else:
                assert statement["Condition"] == account
    data, staging = (f"arn:aws:s3:::{shipped.exports[name]}" for name in ("data_bucket", "staging_bucket"))
    buckets = endpoint_statements(shipped, "s3")["StackBuckets"]["Resource"]
    assert buckets == [data, staging, f"{data}/*", f"{staging}/*"]


def test_s3_endpoint_allows_reading_the_sources_of_the_stack_file(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"readable_buckets": ["our-mirror"]}, node={"package_index": "s3://our-wheels/torch/"})
    statements = endpoint_statements(run, "s3")
    assert statements["Sources"]["Action"] == ["s3:GetObject", "s3:ListBucket"]
    assert statements["Sources"]["Resource"] == ["arn:aws:s3:::our-wheels", "arn:aws:s3:::our-wheels/torch*"]
    assert "arn:aws:s3:::our-mirror/*" in statements["PublicBuckets"]["Resource"]


def test_public_buckets_are_those_from_which_the_nodes_download(
    gpu: Deployment, local: Deployment, changed: Callable[..., Deployment]
) -> None:
    ecr = changed(
        network={"nat_gateway": False},
        node={"package_index": "https://index.example.com/simple"},
        job=with_container(ECR_IMAGE),
    )

    def buckets(run: Deployment) -> set[str]:
        arns = endpoint_statements(run, "s3")["PublicBuckets"]["Resource"]
        return {arn.removeprefix("arn:aws:s3:::").removesuffix("/*") for arn in arns}

    always = {"amazon-ssm-us-east-1", "us-east-1.ec2.archive.ubuntu.com"}
    assert buckets(local) == always
    lustre = {"fsx-lustre-client-repo", "fsx-lustre-client-repo-public-keys"}
    assert buckets(gpu) == always | lustre | {"aws-efa-installer", "efa-installer.amazonaws.com"}
    assert buckets(ecr) == always | {"prod-us-east-1-starport-layer-bucket"}
    (image,) = endpoint_statements(ecr, "ecr.api")["JobImage"]["Resource"]
    assert image == "arn:aws:ecr:us-east-1:763104351884:repository/pytorch-training"


def test_flow_logs_are_encrypted_and_written_by_a_limited_role(shipped: Deployment) -> None:
    group = shipped.resource("aws:cloudwatch/logGroup:LogGroup", "flow-logs")
    assert group.inputs["retentionInDays"] == 30
    assert group.inputs["kmsKeyId"] == shipped.resource("aws:kms/key:Key", "key-stack-key").outputs["arn"]
    log = shipped.resource("aws:ec2/flowLog:FlowLog", "flow-logs").inputs
    assert (log["trafficType"], log["logDestination"]) == ("ALL", group.outputs["arn"])
    policy = json.loads(shipped.resource("aws:iam/rolePolicy:RolePolicy", "flow-logs").inputs["policy"])
    assert [each["Resource"] for each in policy["Statement"]] == [[f"{group.outputs['arn']}:*"]]


def test_flow_logs_can_be_disabled(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"flow_log_retention_days": None})
    assert not run.resources_of_type("aws:ec2/flowLog:FlowLog")
    assert not run.resources_of_type("aws:cloudwatch/logGroup:LogGroup")


def test_without_nat_every_service_has_an_endpoint_and_no_route_leads_out(
    changed: Callable[..., Deployment],
) -> None:
    run = changed(network={"nat_gateway": False}, node={"package_index": "https://index.example.com/simple"})
    for kind in ("natGateway:NatGateway", "internetGateway:InternetGateway", "eip:Eip", "route:Route"):
        assert not run.resources_of_type(f"aws:ec2/{kind}")
    assert [each.name for each in run.resources_of_type(SUBNET)] == [
        f"network-{name}" for name in ("private", "private-b", "private-c")
    ]
    names = {each.inputs["serviceName"].rpartition(".")[2] for each in run.resources_of_type(ENDPOINT)}
    assert names == {"s3", "ssm", "ssmmessages", "autoscaling", "ec2", "sts"}


def test_without_nat_ecr_has_endpoints(changed: Callable[..., Deployment]) -> None:
    def services(nat: bool) -> set[str]:
        node = {"package_index": "https://index.example.com/simple"}
        run = changed(network={"nat_gateway": nat}, node=node, job=with_container(ECR_IMAGE))
        return {
            each.inputs["serviceName"].removeprefix("com.amazonaws.us-east-1.")
            for each in run.resources_of_type(ENDPOINT)
        }

    assert services(nat=False) == {"s3", "ssm", "ssmmessages", "autoscaling", "ec2", "sts", "ecr.api", "ecr.dkr"}
    assert services(nat=True) == {"s3", "ssm", "ssmmessages"}


def test_existing_network_is_not_changed(changed: Callable[..., Deployment]) -> None:
    existing = {"vpc_id": VPC, "subnet_id": SUBNET_ID}
    run = changed(network={"existing": existing})
    for kind in ("vpc:Vpc", "subnet:Subnet", "routeTable:RouteTable", "vpcEndpoint:VpcEndpoint", "flowLog:FlowLog"):
        assert not run.resources_of_type(f"aws:ec2/{kind}")
    assert {each.inputs["vpcId"] for each in run.resources_of_type("aws:ec2/securityGroup:SecurityGroup")} == {VPC}
    assert not run.resources_of_type(DEFAULT_GROUP)
    for name in ("head", "workers"):
        assert run.resource(GROUP, name).inputs["vpcZoneIdentifiers"] == [SUBNET_ID]
