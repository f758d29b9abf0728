"""Mixed instances policies that are wholly Spot: validation, and Spot pools in the order of the allocation strategy.

A Spot pool is an instance type in an Availability Zone. Sources: Auto Scaling API reference, MixedInstancesPolicy and
InstancesDistribution; user guide, "Allocation strategies for multiple instance types" (price-capacity-optimized: the
pools with the highest capacity for the number of instances, of these the cheapest) and "Launch instances
synchronously" (a policy is wholly On-Demand or wholly Spot). kops pull request 7066 has the error of a launch template
with InstanceMarketOptions.
"""

from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError

from rehearsal.aws.ec2.capacity import market_type
from rehearsal.aws.ec2.launch_validation import LaunchParameters
from rehearsal.aws.ec2.spot import spot_price
from rehearsal.aws.ec2.zone_capacity import free_capacity

MAXIMUM_INSTANCE_TYPES = 40
_STRATEGY = "price-capacity-optimized"
_DISTRIBUTION = frozenset(
    ["OnDemandBaseCapacity", "OnDemandPercentageAboveBaseCapacity", "SpotAllocationStrategy", "SpotMaxPrice"]
)


def template_specification(policy: dict[str, Any]) -> dict[str, Any]:
    """Return id or name and version of the policy's launch template."""
    specification: dict[str, Any] = policy["LaunchTemplate"]["LaunchTemplateSpecification"]
    return specification


def instance_types(policy: dict[str, Any], template_type: str | None) -> list[str]:
    """Return the instance types of the overrides; without overrides that of the launch template."""
    overrides = policy["LaunchTemplate"].get("Overrides") or []
    return [override["InstanceType"] for override in overrides] or [template_type or ""]


def validate_policy(policy: dict[str, Any], template: LaunchParameters) -> None:
    """Raise Auto Scaling's error for an invalid policy, and NotImplementedError for options that are not emulated."""
    if market_type(template) is not None:
        raise AutoscalingClientError(
            "InvalidQueryParameter",
            "Incompatible launch template: You cannot use a launch template that is set to request Spot Instances "
            "(InstanceMarketOptions) when you configure an Auto Scaling group with a mixed instances policy. Add a "
            "different launch template to the group and try again.",
        )
    overrides = policy["LaunchTemplate"].get("Overrides") or []
    if len(overrides) > MAXIMUM_INSTANCE_TYPES:
        raise ValidationError(f"A mixed instances policy has at most {MAXIMUM_INSTANCE_TYPES} instance types.")
    if unknown := {key for override in overrides for key, value in override.items() if value} - {"InstanceType"}:
        raise NotImplementedError(f"overrides with {', '.join(sorted(unknown))}")
    distribution = policy.get("InstancesDistribution") or {}
    on_demand = [int(distribution.get("OnDemandBaseCapacity") or 0)]
    on_demand.append(int(distribution.get("OnDemandPercentageAboveBaseCapacity", 100)))
    if any(on_demand):
        raise NotImplementedError("a mixed instances policy with On-Demand Instances")
    unknown = {key for key, value in distribution.items() if value not in (None, "")} - _DISTRIBUTION
    if unknown or distribution.get("SpotAllocationStrategy") != _STRATEGY:
        raise NotImplementedError(f"an instances distribution without {_STRATEGY}, or with {', '.join(unknown)}")


def launch_pools(group: Any, template: LaunchParameters, zone: str, count: int) -> list[LaunchParameters]:
    """Return the parameters of RunInstances for each pool, in the order in which the group tries them.

    A group without a policy has one pool: that of its launch template.
    """
    policy = group.mixed_instances_policy
    if not policy:
        return [{}]
    maximum = policy["InstancesDistribution"].get("SpotMaxPrice")
    market = {"MarketType": "spot", "SpotOptions": {"MaxPrice": maximum} if maximum else {}}
    placement = group.placement_group or (template.get("Placement") or {}).get("GroupName") or ""

    def rank(instance_type: str) -> tuple[int, float]:
        return -free_capacity(group.ec2_backend, instance_type, zone, count, placement), spot_price(instance_type)

    names = sorted(instance_types(policy, template.get("InstanceType")), key=rank)
    return [{"InstanceType": name, "InstanceMarketOptions": market} for name in names]
