"""Auto Scaling groups as API actions: creation, update, deletion, instance health, and AWS's validation errors."""

from collections.abc import Set
from copy import copy
from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.models import AutoScalingBackend
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.autoscaling.members import is_launching, remove
from rehearsal.aws.autoscaling.mixed_instances import instance_types, template_specification, validate_policy
from rehearsal.aws.ec2.launch import merge_launch_template
from rehearsal.aws.ec2.launch_validation import launch_error
from rehearsal.aws.lookup import find_group, find_member
from rehearsal.aws.moto_extension import extend

_moto_create_group = AutoScalingBackend.create_auto_scaling_group
_moto_create = AutoScalingResponse.create_auto_scaling_group
_moto_describe = AutoScalingResponse.describe_auto_scaling_groups
_moto_set_capacity = AutoScalingResponse.set_desired_capacity
_moto_update = AutoScalingResponse.update_auto_scaling_group
_moto_terminate = AutoScalingResponse.terminate_instance_in_auto_scaling_group
_SUPPORTED_KEYS = frozenset(
    [
        "AutoScalingGroupName",
        "AvailabilityZones",
        "CapacityRebalance",
        "CapacityReservationSpecification",
        "DefaultCooldown",
        "DesiredCapacity",
        "HealthCheckGracePeriod",
        "HealthCheckType",
        "InstanceMaintenancePolicy",
        "LaunchTemplate",
        "MaxSize",
        "MinSize",
        "MixedInstancesPolicy",
        "NewInstancesProtectedFromScaleIn",
        "PlacementGroup",
        "Tags",
        "TerminationPolicies",
        "VPCZoneIdentifier",
    ]
)


def install() -> None:
    """Extend moto's operations on groups."""
    extend(AutoScalingBackend, create_auto_scaling_group=_create_group)
    extend(
        AutoScalingResponse,
        create_auto_scaling_group,
        describe_auto_scaling_groups,
        set_desired_capacity,
        update_auto_scaling_group,
        terminate_instance_in_auto_scaling_group,
        set_instance_health,
        delete_auto_scaling_group,
    )


def _create_group(self: Any, name: str, **options: Any) -> Any:
    """Reject groups that AWS rejects; moto creates groups that can never launch."""
    if name in self.autoscaling_groups:
        raise AutoscalingClientError("AlreadyExists", f"AutoScalingGroup by this name already exists - {name}")
    minimum, maximum = int(options["min_size"]), int(options["max_size"])
    desired = minimum if options.get("desired_capacity") is None else int(options["desired_capacity"])
    if not minimum <= desired <= maximum:
        raise ValidationError(
            f"Desired capacity:{desired} must be between the specified min size:{minimum} and max size:{maximum}"
        )
    _validate_template(self.ec2_backend, options)
    group = _moto_create_group(self, name, **options)
    group.health_check_grace_period = int(options.get("health_check_period") or 0)  # moto's default is 300
    return group


def _validate_template(backend: Any, options: dict[str, Any]) -> None:
    """Raise Auto Scaling's error for a launch template that EC2 rejects."""
    policy = options.get("mixed_instances_policy")
    template = template_specification(policy) if policy else options.get("launch_template")
    if not template:
        raise NotImplementedError("an Auto Scaling group without a launch template")
    data = backend._get_template_from_args({**template, "Version": template.get("Version") or "$Default"}).data
    if data.get("NetworkInterfaces") and (data.get("SecurityGroupIds") or data.get("SecurityGroups")):
        raise AutoscalingClientError(
            "InvalidQueryParameter",
            "Invalid launch template: When a network interface is provided, the security groups must be a part of it.",
        )
    if policy:
        validate_policy(policy, data)
    placement = {"Placement": {"GroupName": options["placement_group"]}} if options.get("placement_group") else {}
    for name in instance_types(policy, data.get("InstanceType")) if policy else [data.get("InstanceType")]:
        error = launch_error(backend, merge_launch_template(data, {**placement, "InstanceType": name}))
        if error:
            raise ValidationError(f"You must use a valid fully-formed launch template. {error.message}")


def _validate_reservations(specification: dict[str, Any] | None) -> None:
    """Validate the group's preference and target of capacity reservations.

    Source: Auto Scaling API reference, CapacityReservationSpecification.
    """
    if not specification:
        return
    preference, target = (
        specification.get("CapacityReservationPreference"),
        specification.get("CapacityReservationTarget") or {},
    )
    if preference not in {"capacity-reservations-only", "capacity-reservations-first", "none", "default"}:
        raise ValidationError(f"{preference} is not a valid CapacityReservationPreference.")
    if target and preference in {"none", "default"}:
        raise ValidationError(f"A CapacityReservationTarget can't be specified with the preference {preference}.")
    ids = target.get("CapacityReservationIds") or []
    if (
        preference == "capacity-reservations-first"
        or target.get("CapacityReservationResourceGroupArns")
        or len(ids) > 1
    ):
        raise NotImplementedError("an Auto Scaling group with several capacity reservations, or with a mere preference")


def _require_no_launch(group: Any) -> None:
    """Raise Auto Scaling's error while an instance of the group is pending.

    Sources: API reference, errors of TerminateInstanceInAutoScalingGroup and DeleteAutoScalingGroup; AutoSpotting issue
    354 and upgrade-manager issue 77 show it for instances that are launching.
    """
    if is_launching(group):
        raise _activity_in_progress(group)


def _activity_in_progress(group: Any) -> AutoscalingClientError:
    message = f"Scaling activities are in progress for the AutoScalingGroup {group.name}."
    return AutoscalingClientError("ScalingActivityInProgress", message)


def _without_members(group: Any, hidden: Set[str]) -> Any:
    """Return a copy of a group without the members of these instance ids."""
    visible = copy(group)
    visible.instance_states = [member for member in group.instance_states if member.instance.id not in hidden]
    return visible


def create_auto_scaling_group(self: Any) -> ActionResult:
    """Refuse parameters that are not emulated, and store the CapacityReservationSpecification, which moto ignores."""
    unsupported = {key for key, value in self._get_params().items() if value not in (None, [], {})} - _SUPPORTED_KEYS
    if unsupported:
        raise NotImplementedError(f"an Auto Scaling group with {', '.join(sorted(unsupported))}")
    specification = self._get_param("CapacityReservationSpecification")
    _validate_reservations(specification)
    response = _moto_create(self)
    group = find_group(self.autoscaling_backend, self._get_param("AutoScalingGroupName"))
    group.capacity_reservation_specification = specification
    group.instance_maintenance_policy = _maintenance_policy(self._get_param("InstanceMaintenancePolicy"))
    return response


def _maintenance_policy(policy: dict[str, Any] | None) -> dict[str, int] | None:
    """Validate an InstanceMaintenancePolicy; without one, and with -1, a group has the default behavior.

    Source: Auto Scaling API reference, InstanceMaintenancePolicy.
    """
    if not policy or int(policy["MinHealthyPercentage"]) == -1:
        return None
    minimum, maximum = int(policy["MinHealthyPercentage"]), int(policy["MaxHealthyPercentage"])
    if not (0 <= minimum <= 100 <= maximum <= 200 and maximum - minimum <= 100):
        raise ValidationError(
            f"MinHealthyPercentage {minimum} and MaxHealthyPercentage {maximum} are not valid together."
        )
    if minimum < 100:
        raise NotImplementedError("an instance maintenance policy that does not launch before terminating")
    return {"MinHealthyPercentage": minimum, "MaxHealthyPercentage": maximum}


def set_desired_capacity(self: Any) -> ActionResult:
    """Refuse a capacity outside the limits of the group, and any during the fault `scaling-activity`."""
    name, desired = self._get_param("AutoScalingGroupName"), self._get_int_param("DesiredCapacity")
    group = find_group(self.autoscaling_backend, name)
    if ACTIVE_FAULTS.take_scaling_activity():
        raise _activity_in_progress(group)
    for limit, side, outside in (
        (group.max_size, "above max", desired > group.max_size),
        (group.min_size, "below min", desired < group.min_size),
    ):
        if outside:
            message = f"New SetDesiredCapacity value {desired} is {side} value {limit} for the AutoScalingGroup."
            raise ValidationError(message)
    return _moto_set_capacity(self)


def update_auto_scaling_group(self: Any) -> ActionResult:
    """Apply parameters that moto ignores."""
    group = find_group(self.autoscaling_backend, self._get_param("AutoScalingGroupName"))
    _validate_reservations(self._get_param("CapacityReservationSpecification"))
    policy, template = self._get_param("MixedInstancesPolicy"), self._get_param("LaunchTemplate")
    if policy or template:
        options = {"mixed_instances_policy": policy, "launch_template": template}
        _validate_template(group.ec2_backend, {**options, "placement_group": group.placement_group})
    earlier_policy = group.mixed_instances_policy
    response = _moto_update(self)
    if not (policy or template):
        group.mixed_instances_policy = earlier_policy  # moto removes it
    for key, attribute in (
        ("DefaultCooldown", "default_cooldown"),
        ("PlacementGroup", "placement_group"),
        ("TerminationPolicies", "termination_policies"),
        ("CapacityRebalance", "capacity_rebalance"),
        ("CapacityReservationSpecification", "capacity_reservation_specification"),
    ):
        if self._get_param(key) is not None:
            setattr(group, attribute, self._get_param(key))
    if (policy := self._get_param("InstanceMaintenancePolicy")) is not None:
        group.instance_maintenance_policy = _maintenance_policy(policy)
    bound = min(max(group.desired_capacity, group.min_size), group.max_size)
    if bound != group.desired_capacity:  # moto counts members that are terminating
        group.set_desired_capacity(bound)
    return response


def terminate_instance_in_auto_scaling_group(self: Any) -> ActionResult:
    """Refuse a termination during a launch, and a decrement below the minimum size."""
    group = find_member(self.autoscaling_backend, self._get_param("InstanceId")).auto_scaling_group
    _require_no_launch(group)
    if self._get_bool_param("ShouldDecrementDesiredCapacity", False) and group.desired_capacity <= group.min_size:
        raise ValidationError(
            f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without replacement "
            "will violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or "
            "lower group's min size."
        )
    return _moto_terminate(self)


def describe_auto_scaling_groups(self: Any) -> ActionResult:
    """Omit new members and the member that the fault `member-omission` names."""
    result: Any = _moto_describe(self).result
    groups = result["AutoScalingGroups"]
    instances = [member.instance for group in groups for member in group.instance_states]
    hidden = {instance.id for instance in instances if ACTIVE_FAULTS.is_hidden(instance)}
    described = [instance.id for instance in instances if instance.id not in hidden]
    if omitted := ACTIVE_FAULTS.omitted_member("DescribeAutoScalingGroups", described):
        hidden.add(omitted)
    visible = [_without_members(group, hidden) if hidden else group for group in groups]
    return ActionResult({**result, "AutoScalingGroups": visible})


def set_instance_health(self: Any) -> ActionResult:
    """Set the health of a member."""
    health = self._get_param("HealthStatus")
    if health not in {"Healthy", "Unhealthy"}:
        raise ValidationError(f"Valid instance health states are: [Healthy, Unhealthy], not {health}.")
    in_grace = self._get_bool_param("ShouldRespectGracePeriod", True)
    self.autoscaling_backend.set_instance_health(self._get_param("InstanceId"), health, in_grace)
    return EmptyResult()


def delete_auto_scaling_group(self: Any) -> ActionResult:
    """Delete a group. With ForceDelete its instances terminate at once, without their lifecycle hooks."""
    backend, name = self.autoscaling_backend, self._get_param("AutoScalingGroupName")
    group = find_group(backend, name)
    _require_no_launch(group)
    if group.instance_states and not self._get_bool_param("ForceDelete", False):
        raise AutoscalingClientError(
            "ResourceInUse",
            "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) "
            "still in the group.",
        )
    for member in list(group.instance_states):
        remove(member)
    backend.delete_auto_scaling_group(name)
    for index in (backend.scheduled_actions, backend.lifecycle_hooks, backend.policies):
        for key in [key for key, each in index.items() if each.auto_scaling_group_name == name]:
            del index[key]
    return EmptyResult()
