"""Auto Scaling's LaunchInstances: a synchronous launch, which reports the launched instances and the errors.

Sources: API reference, LaunchInstances; Auto Scaling user guide, "Launch instances synchronously". Neither names
capacity reservations. Assumptions: the group's CapacityReservationSpecification applies as in other launches of the
group, and groups of Capacity Blocks and interruptible reservations are not supported.
"""

from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from rehearsal.aws.autoscaling.members import add_members, group_subnet_ids
from rehearsal.aws.ec2.capacity import market_type
from rehearsal.aws.ec2.launch import Launcher
from rehearsal.aws.ec2.reservations import INTERRUPTIBLE_MARKET
from rehearsal.aws.lookup import find_group
from rehearsal.aws.moto_extension import extend

MAXIMUM_INSTANCES = 100


def install(launcher: Launcher) -> None:
    """Add LaunchInstances to moto."""

    def launch_instances(self: Any) -> ActionResult:
        backend = self.autoscaling_backend
        group = find_group(backend, self._get_param("AutoScalingGroupName"))
        token, parameters = self._get_param("ClientToken"), dict(self._get_params())
        responses: dict[tuple[str, str], tuple[Any, Any]] = vars(backend).setdefault("_launch_instances_tokens", {})
        previous, response = responses.get((group.name, token), (parameters, None))
        if previous != parameters:
            raise AutoscalingClientError(
                "IdempotentParameterMismatch",
                f"The client token {token} was used with other parameters.",
            )
        if response is None:
            response = _launch(launcher, group, parameters)
            responses[group.name, token] = parameters, response
        return ActionResult(response)

    extend(AutoScalingResponse, launch_instances)


def _launch(launcher: Launcher, group: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    count = int(parameters["RequestedCapacity"])
    if count > MAXIMUM_INSTANCES:
        raise ValidationError(f"The number of instances to launch, {count}, exceeds the limit of {MAXIMUM_INSTANCES}.")
    if group.desired_capacity + count > group.max_size:
        raise ValidationError(
            f"The requested capacity {count} would raise the desired capacity {group.desired_capacity} of the "
            f"AutoScalingGroup above its max size {group.max_size}."
        )
    subnet = _select_subnet(group, parameters)
    version = group.ec2_launch_template.get_version(group.launch_template_version)
    market = "spot" if group.mixed_instances_policy else market_type(version.data)
    if market in ("capacity-block", INTERRUPTIBLE_MARKET):  # not documented by AWS
        raise NotImplementedError(f"LaunchInstances with the MarketType {market}")
    if market == "spot" and not group.mixed_instances_policy:
        # Documented for Spot Instances is a mixed instances policy that is wholly Spot.
        raise NotImplementedError("LaunchInstances with a launch template that requests Spot Instances")
    launched = add_members(launcher, group, count, subnet.id)
    group.desired_capacity += len(launched.instances)
    if len(launched.instances) < count and parameters.get("RetryStrategy") == "retry-with-group-configuration":
        group.set_desired_capacity(group.desired_capacity + count - len(launched.instances))
    pool = {
        "MarketType": market or "on-demand",
        "SubnetId": subnet.id,
        "AvailabilityZone": subnet.availability_zone,
        "AvailabilityZoneId": subnet._availability_zone.zone_id,
    }
    ids: dict[str, list[str]] = {}
    for instance in launched.instances:
        ids.setdefault(instance.instance_type, []).append(instance.id)
    return {
        "AutoScalingGroupName": group.name,
        "ClientToken": parameters["ClientToken"],
        "Instances": [{**pool, "InstanceType": name, "InstanceIds": each} for name, each in ids.items()],
        "Errors": [
            {**pool, "InstanceType": name, "ErrorCode": error.code, "ErrorMessage": error.message}
            for name, error in launched.errors.items()
        ],
    }


def _select_subnet(group: Any, parameters: dict[str, Any]) -> Any:
    """Return the subnet of the launch. A call launches in one Availability Zone."""
    subnets = group.ec2_backend.describe_subnets(subnet_ids=group_subnet_ids(group))
    ids, zones = parameters.get("SubnetIds") or [], parameters.get("AvailabilityZones") or []
    zone_ids = parameters.get("AvailabilityZoneIds") or []
    if zones and zone_ids:
        raise ValidationError("AvailabilityZones and AvailabilityZoneIds may not both be specified.")
    if max(len(ids), len(zones), len(zone_ids)) > 1:
        raise ValidationError("A launch takes one subnet and one Availability Zone.")
    if not (ids or zones or zone_ids) and len({subnet.availability_zone for subnet in subnets}) > 1:
        raise ValidationError(
            "Either AvailabilityZones or SubnetIds must be specified for a group with multiple Availability Zones."
        )
    for subnet in subnets:
        if (
            (not ids or subnet.id in ids)
            and (not zones or subnet.availability_zone in zones)
            and (not zone_ids or subnet._availability_zone.zone_id in zone_ids)
        ):
            return subnet
    requested = ", ".join([*ids, *zones, *zone_ids])
    raise ValidationError(f"{requested} is not in the configuration of the AutoScalingGroup {group.name}.")
