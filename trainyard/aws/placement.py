"""Cluster placement groups."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.aws.clients import client


@dataclass(frozen=True)
class PlacementGroup:
    """A placement group."""

    name: str
    arn: str


def create_cluster_group(region: str, name: str, tags: Mapping[str, str]) -> PlacementGroup:
    """Create a cluster placement group."""
    tag_list = [{"Key": key, "Value": value} for key, value in tags.items()]
    created = client("ec2", region).create_placement_group(
        GroupName=name, Strategy="cluster", TagSpecifications=[{"ResourceType": "placement-group", "Tags": tag_list}]
    )["PlacementGroup"]
    return PlacementGroup(created["GroupName"], created["GroupArn"])


def find_placement_groups(region: str, tags: Mapping[str, str]) -> list[PlacementGroup]:
    """Return the placement groups with these tags."""
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
    groups = client("ec2", region).describe_placement_groups(Filters=filters)["PlacementGroups"]
    return [PlacementGroup(group["GroupName"], group["GroupArn"]) for group in groups]


def delete_placement_group(region: str, name: str) -> None:
    """Delete a placement group. Raises ClientError while an instance is in it."""
    client("ec2", region).delete_placement_group(GroupName=name)
