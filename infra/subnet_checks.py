"""What a subnet that somebody else keeps must have, so that a cluster comes up in it: checks of infra.checks."""

from collections.abc import Iterator

from contract.base import CONFIG_KEY, Problem
from contract.rules.network import DOCKER, addresses_needed
from contract.settings import StackSettings
from contract.settings.network import NODE_SERVICES
from infra.facts import Facts


def subnet_is_of_the_vpc(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    given = settings.network.existing
    if facts.subnet and given and facts.subnet.vpc_id != given.vpc_id:
        yield Problem(
            key=f"{CONFIG_KEY}.network.existing.subnet_id",
            value=given.subnet_id,
            why=f"is in {facts.subnet.vpc_id}, not in {given.vpc_id}",
            fix="Name a subnet of that VPC",
        )


def subnet_has_room(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    given, needed = settings.network.existing, addresses_needed(settings)
    if facts.subnet and given and facts.subnet.free_addresses < needed:
        yield Problem(
            key=f"{CONFIG_KEY}.network.existing.subnet_id",
            value=given.subnet_id,
            why=f"has {facts.subnet.free_addresses} free addresses, the cluster needs {needed}",
            fix="Name a larger subnet, or fewer nodes",
        )


def subnet_gives_no_public_addresses(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    given = settings.network.existing
    if facts.subnet and given and facts.subnet.gives_addresses:
        yield Problem(
            key=f"{CONFIG_KEY}.network.existing.subnet_id",
            value=given.subnet_id,
            why="gives every instance a public address, and EC2 refuses that to nodes with several interfaces",
            fix="Name another, or turn it off: aws ec2 modify-subnet-attribute --no-map-public-ip-on-launch",
        )


def subnet_is_not_dockers(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    given = settings.network.existing
    if facts.subnet and given and facts.subnet.cidr.overlaps(DOCKER):
        yield Problem(
            key=f"{CONFIG_KEY}.network.existing.subnet_id",
            value=given.subnet_id,
            why=f"its range {facts.subnet.cidr} overlaps {DOCKER}, the bridge of Docker on the nodes",
            fix="Name a subnet of another range",
        )


def subnet_reaches_aws(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found, given = facts.subnet, settings.network.existing
    if found is None or given is None:
        return

    def problem(why: str, fix: str) -> Problem:
        return Problem(key=f"{CONFIG_KEY}.network.existing.subnet_id", value=given.subnet_id, why=why, fix=fix)

    if found.public:
        yield problem(
            "its default route is an internet gateway, and nodes have no public address to go through it",
            "Name a private subnet, whose default route is a NAT gateway",
        )
    elif not found.way_out:
        missing = [name for name in NODE_SERVICES if name not in found.services]
        if missing:
            yield problem(
                f"has no default route, and its VPC no endpoint for {', '.join(missing)}",
                "Add a NAT gateway, or interface endpoints with private DNS for these",
            )
    if not found.s3_endpoint:
        yield problem(
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
    node, found, given = settings.node, facts.subnet, settings.network.existing
    if found is None or given is None or found.way_out or found.public:
        return
    if node.system == "configure" and node.package_index is None:
        yield Problem(
            key=f"{CONFIG_KEY}.network.existing.subnet_id",
            value=given.subnet_id,
            why="has no default route, so nodes reach no package index, and node.system is configure",
            fix="Set node.package_index to one inside the VPC, or node.system to as-is with an image that is complete",
        )


CHECKS = (
    subnet_is_of_the_vpc,
    subnet_has_room,
    subnet_gives_no_public_addresses,
    subnet_is_not_dockers,
    subnet_reaches_aws,
    closed_subnet_brings_the_software,
    vpc_resolves_names,
)
