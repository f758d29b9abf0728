"""Validators of an existing subnet that a stack names (network.existing)."""

from collections.abc import Iterator

from infra.lookups.account import Facts
from infra.lookups.subnet import SubnetFacts
from trainyard.base import CONFIG_KEY, Problem
from trainyard.config.settings import StackSettings
from trainyard.config.validators.network import BRING_SOFTWARE, DOCKER, addresses_needed, fetches_software


def _of_subnet(found: SubnetFacts, why: str, fix: str) -> Problem:
    return Problem(key=f"{CONFIG_KEY}.network.existing.subnet_id", value=found.id, why=why, fix=fix)


def subnet_is_of_the_vpc(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found, given = facts.subnet, settings.network.existing
    if found and given and found.vpc_id != given.vpc_id:
        yield _of_subnet(found, f"is in {found.vpc_id}, not in {given.vpc_id}", "Name a subnet of that VPC")


def subnet_has_room(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found, needed = facts.subnet, addresses_needed(settings)
    if found and found.free_addresses < needed:
        why = f"has {found.free_addresses} free addresses, the cluster needs {needed}"
        yield _of_subnet(found, why, "Name a larger subnet, or fewer nodes")


def subnet_gives_no_public_addresses(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    if facts.subnet and facts.subnet.gives_addresses:
        yield _of_subnet(
            facts.subnet,
            "gives every instance a public address, and EC2 refuses that to nodes with several interfaces",
            "Name another, or turn it off: aws ec2 modify-subnet-attribute --no-map-public-ip-on-launch",
        )


def subnet_is_not_dockers(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found = facts.subnet
    if found and found.cidr.overlaps(DOCKER):
        why = f"its range {found.cidr} overlaps {DOCKER}, the bridge of Docker on the nodes"
        yield _of_subnet(found, why, "Name a subnet of another range")


def subnet_reaches_aws(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found = facts.subnet
    if found is None:
        return
    missing = [name for name in settings.node_services if name not in found.services]
    if found.public:
        yield _of_subnet(
            found,
            "its default route is an internet gateway, and nodes have no public address to go through it",
            "Name a private subnet, whose default route is a NAT gateway",
        )
    elif not found.way_out and missing:
        yield _of_subnet(
            found,
            f"has no default route, and its VPC no endpoint for {', '.join(missing)}",
            "Add a NAT gateway, or interface endpoints with private DNS for these",
        )
    if not found.s3_endpoint:
        yield _of_subnet(
            found,
            "its routes have no gateway endpoint for S3: data and checkpoints would pay NAT by the gigabyte",
            f"Add one, which is free: aws ec2 create-vpc-endpoint --vpc-id {found.vpc_id} --service-name "
            f"com.amazonaws.{facts.region}.s3 --route-table-ids ...",
        )


def vpc_resolves_names(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    given = settings.network.existing
    if facts.subnet and given and not facts.subnet.resolves_names:
        yield Problem(
            key=f"{CONFIG_KEY}.network.existing.vpc_id",
            value=given.vpc_id,
            why="DNS support or DNS hostnames are off in it, so nodes find neither AWS's endpoints nor each other",
            fix="Turn both on: aws ec2 modify-vpc-attribute",
        )


def closed_subnet_brings_the_software(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found = facts.subnet
    if found and not found.way_out and not found.public and fetches_software(settings):
        why = "has no default route, so nodes reach no package index, and node.system is configure"
        yield _of_subnet(found, why, BRING_SOFTWARE)


CHECKS = (
    subnet_is_of_the_vpc,
    subnet_has_room,
    subnet_gives_no_public_addresses,
    subnet_is_not_dockers,
    subnet_reaches_aws,
    closed_subnet_brings_the_software,
    vpc_resolves_names,
)
