"""Auto Scaling's LaunchInstances: a synchronous launch that says at once what it got, and why not the rest."""

from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError

from rehearsal.aws.autoscaling.members import add_members, subnets_of
from rehearsal.aws.ec2.capacity import market_of
from rehearsal.aws.ec2.launch import Launcher
from rehearsal.aws.extension import extend
from rehearsal.aws.injection import InsufficientCapacity
from rehearsal.aws.lookup import group_of

MOST_INSTANCES = 100


def install(launcher: Launcher) -> None:
    def launch_instances(self: Any) -> ActionResult:
        backend = self.autoscaling_backend
        group = group_of(backend, self._get_param("AutoScalingGroupName"))
        token, asked = self._get_param("ClientToken"), dict(self._get_params())
        answered: dict[tuple[str, str], tuple[Any, Any]] = vars(backend).setdefault("_launch_instances_tokens", {})
        before, answer = answered.get((group.name, token), (asked, None))
        if before != asked:
            raise AutoscalingClientError(
                "IdempotentParameterMismatch",
                f"The client token {token} was used with other parameters.",
            )
        if answer is None:
            answer = _launch(launcher, group, asked)
            answered[group.name, token] = asked, answer
        return ActionResult(answer)

    extend(AutoScalingResponse, launch_instances)


def _launch(launcher: Launcher, group: Any, asked: dict[str, Any]) -> dict[str, Any]:
    count = int(asked["RequestedCapacity"])
    if count > MOST_INSTANCES:
        raise ValidationError(f"The number of instances to launch, {count}, exceeds the limit of {MOST_INSTANCES}.")
    if group.desired_capacity + count > group.max_size:
        raise ValidationError(
            f"The requested capacity {count} would raise the desired capacity {group.desired_capacity} of the "
            f"AutoScalingGroup above its max size {group.max_size}."
        )
    subnet = _subnet(group, asked)
    version = group.ec2_launch_template.get_version(group.launch_template_version)
    if market_of(version.data) == "capacity-block":  # AWS's documents say nothing of it
        raise NotImplementedError("LaunchInstances into a Capacity Block")
    pool = {
        "InstanceType": version.instance_type,
        "MarketType": market_of(version.data) or "on-demand",
        "SubnetId": subnet.id,
        "AvailabilityZone": subnet.availability_zone,
        "AvailabilityZoneId": subnet._availability_zone.zone_id,
    }
    answer: dict[str, Any] = {
        "AutoScalingGroupName": group.name,
        "ClientToken": asked["ClientToken"],
        "Instances": [],
        "Errors": [],
    }
    launched, error = [], None
    try:
        launched = add_members(launcher, group, count, subnet.id)
    except EC2ClientError as refusal:
        error = refusal
    if launched:
        answer["Instances"] = [{**pool, "InstanceIds": [instance.id for instance in launched]}]
        if len(launched) < count:
            error = InsufficientCapacity(subnet.availability_zone, version.instance_type)
    group.desired_capacity += len(launched)
    if error:
        answer["Errors"] = [{**pool, "ErrorCode": error.code, "ErrorMessage": error.message}]
        if asked.get("RetryStrategy") == "retry-with-group-configuration":
            group.set_desired_capacity(group.desired_capacity + count - len(launched))
    return answer


def _subnet(group: Any, asked: dict[str, Any]) -> Any:
    """The one subnet of this launch: a call serves one zone."""
    subnets = group.ec2_backend.describe_subnets(subnet_ids=subnets_of(group))
    ids, zones = asked.get("SubnetIds") or [], asked.get("AvailabilityZones") or []
    zone_ids = asked.get("AvailabilityZoneIds") or []
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
    wanted = ", ".join([*ids, *zones, *zone_ids])
    raise ValidationError(f"{wanted} is not in the configuration of the AutoScalingGroup {group.name}.")
