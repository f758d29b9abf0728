"""Placement groups: CreatePlacementGroup, DescribePlacementGroups, DeletePlacementGroup."""

from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX, generic_filter, random_id

from rehearsal.aws.moto_extension import ec2_error, extend


class PlacementGroup(TaggedEC2Resource):
    """A placement group; its attributes are the fields of DescribePlacementGroups."""

    def __init__(
        self, backend: Any, name: str, strategy: str, partition_count: int | None, spread_level: str | None
    ) -> None:
        self.ec2_backend = backend
        self.id = self.group_id = random_id("pg")
        self.group_name = name
        self.strategy = strategy
        self.state = "available"
        self.partition_count = partition_count
        self.spread_level = spread_level
        region, account = backend.region_name, backend.account_id
        self.group_arn = f"arn:{backend.partition}:ec2:{region}:{account}:placement-group/{name}"

    @property
    def tags(self) -> list[dict[str, str]]:
        """Tags as moto's serializer expects them."""
        tags: list[dict[str, str]] = self.get_tags()
        return tags


def placement_groups(backend: Any) -> dict[str, PlacementGroup]:
    """Return the placement groups of a region, by name."""
    groups: dict[str, PlacementGroup] = vars(backend).setdefault("placement_groups", {})
    return groups


def validate_placement(backend: Any, group_name: str, instance_type: str) -> None:
    """Raise EC2's error if the placement group does not exist or does not support the instance type."""
    group = placement_groups(backend).get(group_name)
    if group is None:
        raise ec2_error("InvalidPlacementGroup.Unknown", f"The Placement Group '{group_name}' is unknown.")
    supported = INSTANCE_TYPES[instance_type].get("PlacementGroupInfo", {}).get("SupportedStrategies", [])
    if group.strategy not in supported:
        raise ec2_error(
            "InvalidParameterCombination",
            f"{group.strategy.title()} placement groups are not supported by the '{instance_type}' instance type. "
            "Specify a supported instance type or change the placement group strategy, and try again.",
        )


def create_placement_group(self: Any) -> ActionResult:
    """Create a placement group."""
    name = self._get_param("GroupName")
    self.error_on_dryrun()
    groups = placement_groups(self.ec2_backend)
    if not name:
        raise ec2_error("MissingParameter", "The request must contain the parameter GroupName")
    if name in groups:
        raise ec2_error("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    strategy = self._get_param("Strategy", "cluster")
    if strategy not in {"cluster", "partition", "spread"}:
        raise ec2_error("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
    partition_count = self._get_int_param("PartitionCount")
    group = PlacementGroup(self.ec2_backend, name, strategy, partition_count, self._get_param("SpreadLevel"))
    group.add_tags(self._parse_tag_specification("placement-group").get("placement-group", {}))
    groups[name] = group
    return ActionResult({"PlacementGroup": group})


def describe_placement_groups(self: Any) -> ActionResult:
    """Return placement groups by name, id and filter."""
    groups = placement_groups(self.ec2_backend)
    selected = list(groups.values())
    names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
    for name in names:
        if name not in groups:
            raise ec2_error("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    known_ids = {group.id for group in selected}
    for group_id in ids:
        if group_id not in known_ids:
            raise ec2_error("InvalidPlacementGroupId.Unknown", f"The placement group ID '{group_id}' is unknown.")
    if names or ids:
        selected = [group for group in selected if group.group_name in names or group.id in ids]
    return ActionResult({"PlacementGroups": generic_filter(self._filters_from_querystring(), selected)})


def delete_placement_group(self: Any) -> EmptyResult:
    """Delete a placement group. Raises EC2's error while an instance is in it."""
    name = self._get_param("GroupName")
    groups = placement_groups(self.ec2_backend)
    if name not in groups:
        raise ec2_error("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    instances = (i for i in self.ec2_backend.all_instances() if i.state != "terminated")
    if any(instance.placement.group_name == name for instance in instances):
        raise ec2_error(
            "InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted."
        )
    del groups[name]
    return EmptyResult()


def install() -> None:
    """Add the operations on placement groups to moto."""
    # CreateTags accepts only ids with a prefix that moto knows.
    EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"
    EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
    extend(EC2Response, create_placement_group, describe_placement_groups, delete_placement_group)
