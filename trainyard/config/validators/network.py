"""Validators of the network."""

from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem

SUBNETS = 8  # a private and a public subnet, and a private one for workers in each of six Availability Zones
_RESERVED_ADDRESSES = 5  # VPC user guide, "Subnet CIDR blocks"
_FSX_ADDRESSES = 8
_ENDPOINT_ADDRESSES = 16  # one an interface endpoint; infra.components.endpoints creates fewer
# VPC user guide, "VPC CIDR blocks": RFC 1918, and the shared range of RFC 6598.
_PRIVATE = tuple(IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
# Docker's default bridge, present in the deep-learning images: a node cannot reach other nodes in this range.
DOCKER_BRIDGE = IPv4Network("172.17.0.0/16")
PROVIDE_SOFTWARE = (
    "Set node.package_index to an index inside the VPC, or node.provisioning to skip with a complete image"
)
_OWN_VPC_KEYS = ("cidr", "nat_gateway", "flow_log_retention_days", "readable_buckets")


def required_addresses(settings: StackSettings) -> int:
    """Private IPv4 addresses that the cluster uses in its subnet."""
    return settings.instances + 1 + _ENDPOINT_ADDRESSES + (_FSX_ADDRESSES if settings.fsx else 0)


def downloads_software(settings: StackSettings) -> bool:
    """Whether nodes install packages from the internet."""
    return settings.node.provisioning == "configure" and settings.node.package_index is None


def efa_supported(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The instance type supports EFA where the stack requires it."""
    if settings.network.efa and not settings.worker_type.efa_interfaces:
        reason = f"{settings.instance_type} does not support Elastic Fabric Adapter (EFA)"
        fix = "Set it to false, or choose an instance type with EFA such as p4d.24xlarge"
        yield invalid_setting("network.efa", True, reason, fix)


def placement_group_supported(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The instance type supports cluster placement groups where the stack requires one."""
    if settings.network.placement_group and not settings.worker_type.cluster_placement:
        reason = f"{settings.instance_type} does not support cluster placement groups"
        yield invalid_setting(
            "network.placement_group", True, reason, "Set it to false, or choose another instance type"
        )


def no_placement_group_with_capacity_block(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """A Capacity Block has no placement group."""
    if settings.network.placement_group and settings.capacity.capacity_block:
        reason = "AWS places the instances of a Capacity Block itself, and accepts no placement group for them"
        yield invalid_setting("network.placement_group", True, reason, "Remove it, or set it to false")


def cidr_has_enough_addresses(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Each private subnet, an eighth of the VPC's CIDR block, has an address for each interface."""
    if settings.network.existing:
        return  # infra.validators.subnet checks the existing subnet
    cidr = settings.network.cidr
    if not 16 <= cidr.prefixlen <= 24:
        reason = "the VPC's CIDR block must be from /16 (the largest AWS allows) to /24 (space for eight subnets)"
        yield invalid_setting("network.cidr", str(cidr), reason, "Choose a block such as 10.42.0.0/16")
        return
    available = cidr.num_addresses // SUBNETS - _RESERVED_ADDRESSES
    required = required_addresses(settings)
    if required > available:
        reason = (
            f"too small: an eighth of it, one subnet, has {available} free addresses, and the cluster needs {required}"
        )
        yield invalid_setting("network.cidr", str(cidr), reason, "Choose a larger block, such as 10.42.0.0/16")


def cidr_is_private(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The VPC's CIDR block is private and does not overlap Docker's bridge."""
    cidr = settings.network.cidr
    if not any(cidr.subnet_of(private) for private in _PRIVATE):
        reason = "not a private block, so internet hosts in it would be unreachable"
        fix = "Choose a block in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10"
        yield invalid_setting("network.cidr", str(cidr), reason, fix)
    elif cidr.overlaps(DOCKER_BRIDGE):
        reason = f"overlaps {DOCKER_BRIDGE}, Docker's bridge on the nodes, so nodes could not reach each other"
        yield invalid_setting("network.cidr", str(cidr), reason, "Choose another block, such as 10.42.0.0/16")


def existing_network_not_configured(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The keys of the stack's own VPC are absent where the stack uses an existing one."""
    network = settings.network
    for key in _OWN_VPC_KEYS:
        if network.existing and key in network.model_fields_set:
            value = network.model_dump(mode="json")[key]
            reason = "conflicts with network.existing: the owner of that VPC decides it"
            fix = "Remove it, or remove network.existing to create a VPC with it"
            yield invalid_setting(f"network.{key}", value, reason, fix)


def software_reachable_without_nat(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Nodes without internet access have another source of software."""
    if not settings.network.nat_gateway and downloads_software(settings):
        reason = "without a NAT gateway nodes reach no package index, and node.provisioning is configure"
        yield invalid_setting("network.nat_gateway", False, reason, PROVIDE_SOFTWARE)


VALIDATORS = (
    efa_supported,
    placement_group_supported,
    no_placement_group_with_capacity_block,
    cidr_has_enough_addresses,
    cidr_is_private,
    existing_network_not_configured,
    software_reachable_without_nat,
)
