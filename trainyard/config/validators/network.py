"""Rules about the network."""

from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

from trainyard.base import CONFIG_KEY, Problem
from trainyard.config.settings import StackSettings
from trainyard.config.validators.rule import Rule

_RESERVED_BY_AWS = 5
_FSX_ADDRESSES = 8
_ENDPOINT_ADDRESSES = 16  # an interface endpoint takes one address in the subnet; infra.components.endpoints has fewer
# VPC user guide, "VPC CIDR blocks": RFC 1918, and the shared range of RFC 6598.
_PRIVATE = tuple(IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
# Docker's default bridge, which the deep-learning images bring: nodes in its range can't be reached from a node.
DOCKER = IPv4Network("172.17.0.0/16")
BRING_SOFTWARE = "Set node.package_index to one inside the VPC, or node.system to as-is with an image that is complete"
_DECIDED_BY_OWNER = ("cidr", "zone", "nat", "flow_logs_days")  # of a network that is there


def addresses_needed(settings: StackSettings) -> int:
    """Addresses that the cluster takes in its private subnet."""
    return settings.nodes + 1 + _ENDPOINT_ADDRESSES + (_FSX_ADDRESSES if settings.fsx else 0)


def efa_is_borne(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if settings.network.efa and not settings.worker_type.efa_interfaces:
        yield Problem(
            key=f"{CONFIG_KEY}.network.efa",
            value=True,
            why=f"{settings.instance_type} bears no Elastic Fabric Adapter",
            fix="Set it to false, or choose an instance type with EFA such as p4d.24xlarge",
        )


def placement_is_borne(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if settings.network.placement_group and not settings.worker_type.cluster_placement:
        yield Problem(
            key=f"{CONFIG_KEY}.network.placement_group",
            value=True,
            why=f"{settings.instance_type} can't be in a cluster placement group",
            fix="Set it to false, or choose another instance type",
        )


def block_is_placed_by_aws(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if settings.network.placement_group and settings.capacity.capacity_block:
        yield Problem(
            key=f"{CONFIG_KEY}.network.placement_group",
            value=True,
            why="AWS places the instances of a Capacity Block itself, and takes no placement group for them",
            fix="Remove it, or set it to false",
        )


def addresses_suffice(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if settings.network.existing:
        return  # whose addresses only the account knows
    cidr = settings.network.cidr
    if not 16 <= cidr.prefixlen <= 24:
        yield Problem(
            key=f"{CONFIG_KEY}.network.cidr",
            value=str(cidr),
            why="the VPC's range must be from /16 (AWS's largest) to /24 (room for two subnets)",
            fix="Choose a range such as 10.42.0.0/16",
        )
        return
    # Half of the range is the private subnet, where every node and the file system live.
    room = cidr.num_addresses // 2 - _RESERVED_BY_AWS
    needed = addresses_needed(settings)
    if needed > room:
        yield Problem(
            key=f"{CONFIG_KEY}.network.cidr",
            value=str(cidr),
            why=f"too small: its private half has {room} free addresses, the cluster needs {needed}",
            fix="Choose a larger range, such as 10.42.0.0/16",
        )


def range_is_private(settings: StackSettings, root: Path) -> Iterator[Problem]:
    cidr = settings.network.cidr
    if not any(cidr.subnet_of(private) for private in _PRIVATE):
        yield Problem(
            key=f"{CONFIG_KEY}.network.cidr",
            value=str(cidr),
            why="not a private range, so hosts of the internet in it could not be reached",
            fix="Choose one below 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10",
        )
    elif cidr.overlaps(DOCKER):
        yield Problem(
            key=f"{CONFIG_KEY}.network.cidr",
            value=str(cidr),
            why=f"overlaps {DOCKER}, the bridge of Docker on the nodes, which could then not reach each other",
            fix="Choose another range, such as 10.42.0.0/16",
        )


def existing_network_is_its_owners(settings: StackSettings, root: Path) -> Iterator[Problem]:
    network = settings.network
    for key in _DECIDED_BY_OWNER:
        if network.existing and key in network.model_fields_set:
            yield Problem(
                key=f"{CONFIG_KEY}.network.{key}",
                value=str(network.cidr) if key == "cidr" else getattr(network, key),
                why="stands beside network.existing, whose owner has decided that",
                fix=f"Remove it; or remove network.existing, and the stack has a network of its own with that {key}",
            )


def fetches_software(settings: StackSettings) -> bool:
    """Whether nodes configure themselves from the internet."""
    return settings.node.system == "configure" and settings.node.package_index is None


def closed_nodes_find_their_software(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if not settings.network.nat and fetches_software(settings):
        yield Problem(
            key=f"{CONFIG_KEY}.network.nat",
            value=False,
            why="without a way out nodes reach no package index, and node.system is configure",
            fix=BRING_SOFTWARE,
        )


RULES = (
    Rule(efa_is_borne, ("network.efa", "instance_type")),
    Rule(placement_is_borne, ("network.placement_group", "instance_type")),
    Rule(block_is_placed_by_aws, ("network.placement_group", "capacity")),
    Rule(addresses_suffice, ("network.cidr", "network.existing", "nodes", "fsx")),
    Rule(range_is_private, ("network.cidr",)),
    Rule(existing_network_is_its_owners, ("network.existing", *(f"network.{key}" for key in _DECIDED_BY_OWNER))),
    Rule(closed_nodes_find_their_software, ("network.nat", "node.system", "node.package_index")),
)
