"""Validators of an existing subnet that a stack uses (network.existing)."""

from collections.abc import Iterator

from infra.lookups.account import AccountFacts
from infra.lookups.subnet import SubnetFacts
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.config.validators.network import (
    DOCKER_BRIDGE,
    PROVIDE_SOFTWARE,
    downloads_software,
    required_addresses,
)
from trainyard.errors import Problem


def _subnet_problem(subnet: SubnetFacts, reason: str, fix: str) -> Problem:
    return invalid_setting("network.existing.subnet_id", subnet.id, reason, fix)


def subnet_in_vpc(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The subnet is in the configured VPC."""
    subnet, network = facts.subnet, settings.network.existing
    if subnet and network and subnet.vpc_id != network.vpc_id:
        reason = f"is in {subnet.vpc_id}, not in {network.vpc_id}"
        yield _subnet_problem(subnet, reason, "Use a subnet of that VPC")


def subnet_has_enough_addresses(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The subnet has an address for each network interface."""
    subnet, required = facts.subnet, required_addresses(settings)
    if subnet and subnet.free_addresses < required:
        reason = f"has {subnet.free_addresses} free addresses, the cluster needs {required}"
        yield _subnet_problem(subnet, reason, "Use a larger subnet, or fewer nodes")


def subnet_assigns_no_public_ips(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The subnet assigns no public IP addresses: EC2 refuses them with several network interfaces."""
    if facts.subnet and facts.subnet.assigns_public_ips:
        reason = "assigns public IP addresses, which EC2 refuses for instances with several network interfaces"
        fix = "Use another subnet, or run aws ec2 modify-subnet-attribute --no-map-public-ip-on-launch"
        yield _subnet_problem(facts.subnet, reason, fix)


def subnet_outside_docker_bridge(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The subnet does not overlap Docker's bridge."""
    subnet = facts.subnet
    if subnet and subnet.cidr.overlaps(DOCKER_BRIDGE):
        reason = f"its CIDR block {subnet.cidr} overlaps {DOCKER_BRIDGE}, Docker's bridge on the nodes"
        yield _subnet_problem(subnet, reason, "Use a subnet with another CIDR block")


def subnet_reaches_aws(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """Nodes in the subnet reach the AWS services that they call, and S3 without NAT."""
    subnet = facts.subnet
    if subnet is None:
        return
    missing = [name for name in settings.node_services if name not in subnet.services]
    if subnet.is_public:
        reason = "its default route is an internet gateway, and nodes have no public IP address to use it"
        yield _subnet_problem(subnet, reason, "Use a private subnet, whose default route is a NAT gateway")
    elif not subnet.has_egress and missing:
        reason = f"has no default route, and its VPC has no endpoint for {', '.join(missing)}"
        yield _subnet_problem(subnet, reason, "Add a NAT gateway, or interface endpoints with private DNS")
    if not subnet.has_s3_endpoint:
        reason = "has no route to a gateway endpoint for S3, so NAT would bill data and checkpoints per gigabyte"
        fix = (
            f"Add a gateway endpoint (free): aws ec2 create-vpc-endpoint --vpc-id {subnet.vpc_id} --service-name "
            f"com.amazonaws.{facts.region}.s3 --route-table-ids ..."
        )
        yield _subnet_problem(subnet, reason, fix)


def vpc_has_dns(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """DNS support and DNS hostnames are enabled in the VPC."""
    network = settings.network.existing
    if facts.subnet and network and not facts.subnet.has_dns:
        reason = "DNS support or DNS hostnames are disabled, so nodes cannot resolve AWS endpoints and each other"
        fix = "Enable both: aws ec2 modify-vpc-attribute"
        yield invalid_setting("network.existing.vpc_id", network.vpc_id, reason, fix)


def software_reachable_in_subnet(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """Nodes without internet access have another source of software."""
    subnet = facts.subnet
    if subnet and not subnet.has_egress and not subnet.is_public and downloads_software(settings):
        reason = "has no default route, so nodes reach no package index, and node.provisioning is configure"
        yield _subnet_problem(subnet, reason, PROVIDE_SOFTWARE)


VALIDATORS = (
    subnet_in_vpc,
    subnet_has_enough_addresses,
    subnet_assigns_no_public_ips,
    subnet_outside_docker_bridge,
    subnet_reaches_aws,
    software_reachable_in_subnet,
    vpc_has_dns,
)
