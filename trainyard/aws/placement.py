"""Cluster placement groups."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.aws.clients import client
from trainyard.aws.tags import tag_filters, tag_specifications


@dataclass(frozen=True)
class PlacementGroup:
    """A placement group."""

    name: str
    arn: str


def create_cluster_group(region: str, name: str, tags: Mapping[str, str]) -> PlacementGroup:
    """Create a cluster placement group."""
    created = client("ec2", region).create_placement_group(
        GroupName=name, Strategy="cluster", TagSpecifications=tag_specifications(tags, ["placement-group"])
    )["PlacementGroup"]
    return PlacementGroup(created["GroupName"], created["GroupArn"])


def find_placement_groups(region: str, tags: Mapping[str, str]) -> list[PlacementGroup]:
    """Return the placement groups with these tags."""
    groups = client("ec2", region).describe_placement_groups(Filters=tag_filters(tags))["PlacementGroups"]
    return [PlacementGroup(group["GroupName"], group["GroupArn"]) for group in groups]


def delete_placement_group(region: str, name: str) -> None:
    """Delete a placement group. Raises ClientError while an instance is in it."""
    client("ec2", region).delete_placement_group(GroupName=name)
