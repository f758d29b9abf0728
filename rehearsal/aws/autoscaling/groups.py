"""Auto Scaling groups as API actions: their template, their limits, their deletion, and what AWS refuses."""

from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.models import AutoScalingBackend
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from rehearsal.aws.autoscaling.members import remove
from rehearsal.aws.ec2.launch import merged
from rehearsal.aws.ec2.launch_checks import problem
from rehearsal.aws.extension import extend
from rehearsal.aws.lookup import group_of, member_of

_KNOWN = frozenset(
    [
        "AutoScalingGroupName",
        "AvailabilityZones",
        "CapacityRebalance",
        "DefaultCooldown",
        "DesiredCapacity",
        "HealthCheckGracePeriod",
        "HealthCheckType",
        "LaunchTemplate",
        "MaxSize",
        "MinSize",
        "NewInstancesProtectedFromScaleIn",
        "PlacementGroup",
        "Tags",
        "TerminationPolicies",
        "VPCZoneIdentifier",
    ]
)


def install() -> None:
    create = AutoScalingBackend.create_auto_scaling_group

    def create_auto_scaling_group(self: Any, name: str, **given: Any) -> Any:
        """AWS refuses these; moto makes a group that can never launch."""
        if name in self.autoscaling_groups:
            raise AutoscalingClientError("AlreadyExists", f"AutoScalingGroup by this name already exists - {name}")
        lowest, most = int(given["min_size"]), int(given["max_size"])
        desired = lowest if given.get("desired_capacity") is None else int(given["desired_capacity"])
        if not lowest <= desired <= most:
            raise ValidationError(
                f"Desired capacity:{desired} must be between the specified min size:{lowest} and max size:{most}"
            )
        _check_template(self.ec2_backend, given)
        made = create(self, name, **given)
        made.health_check_grace_period = int(given.get("health_check_period") or 0)  # moto's own default is 300
        return made

    extend(AutoScalingBackend, create_auto_scaling_group)
    _install_answers()


def _check_template(backend: Any, given: dict[str, Any]) -> None:
    """Auto Scaling makes no group from a template that EC2 would refuse."""
    template = given.get("launch_template")
    if not template:
        raise NotImplementedError("a group without a launch template of its own")
    data = backend._get_template_from_args({**template, "Version": template.get("Version") or "$Default"}).data
    if data.get("NetworkInterfaces") and (data.get("SecurityGroupIds") or data.get("SecurityGroups")):
        raise AutoscalingClientError(
            "InvalidQueryParameter",
            "Invalid launch template: When a network interface is provided, the security groups must be a part of it.",
        )
    placement = {"Placement": {"GroupName": given["placement_group"]}} if given.get("placement_group") else {}
    refusal = problem(backend, merged(data, placement))
    if refusal:
        raise ValidationError(f"You must use a valid fully-formed launch template. {refusal.message}")


def _install_answers() -> None:
    make, resize, change = (
        AutoScalingResponse.create_auto_scaling_group,
        AutoScalingResponse.set_desired_capacity,
        AutoScalingResponse.update_auto_scaling_group,
    )
    end = AutoScalingResponse.terminate_instance_in_auto_scaling_group

    def create_auto_scaling_group(self: Any) -> ActionResult:
        unknown = {key for key, value in self._get_params().items() if value not in (None, [], {})} - _KNOWN
        if unknown:
            raise NotImplementedError(f"a group with {', '.join(sorted(unknown))}")
        return make(self)

    def set_desired_capacity(self: Any) -> ActionResult:
        name, wanted = self._get_param("AutoScalingGroupName"), self._get_int_param("DesiredCapacity")
        group = group_of(self.autoscaling_backend, name)
        for limit, side, outside in (
            (group.max_size, "above max", wanted > group.max_size),
            (group.min_size, "below min", wanted < group.min_size),
        ):
            if outside:
                message = f"New SetDesiredCapacity value {wanted} is {side} value {limit} for the AutoScalingGroup."
                raise ValidationError(message)
        return resize(self)

    def update_auto_scaling_group(self: Any) -> ActionResult:
        """moto leaves these as they were."""
        group = group_of(self.autoscaling_backend, self._get_param("AutoScalingGroupName"))
        answer = change(self)
        for key, attribute in (
            ("DefaultCooldown", "default_cooldown"),
            ("PlacementGroup", "placement_group"),
            ("TerminationPolicies", "termination_policies"),
            ("CapacityRebalance", "capacity_rebalance"),
        ):
            if self._get_param(key) is not None:
                setattr(group, attribute, self._get_param(key))
        bound = min(max(group.desired_capacity, group.min_size), group.max_size)
        if bound != group.desired_capacity:  # moto counts a member that is ending as one that is there
            group.set_desired_capacity(bound)
        return answer

    def terminate_instance_in_auto_scaling_group(self: Any) -> ActionResult:
        group = member_of(self.autoscaling_backend, self._get_param("InstanceId")).auto_scaling_group
        if self._get_bool_param("ShouldDecrementDesiredCapacity", False) and group.desired_capacity <= group.min_size:
            raise ValidationError(
                f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without replacement "
                "will violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or "
                "lower group's min size."
            )
        return end(self)

    def set_instance_health(self: Any) -> ActionResult:
        health = self._get_param("HealthStatus")
        if health not in {"Healthy", "Unhealthy"}:
            raise ValidationError(f"Valid instance health states are: [Healthy, Unhealthy], not {health}.")
        in_grace = self._get_bool_param("ShouldRespectGracePeriod", True)
        self.autoscaling_backend.set_instance_health(self._get_param("InstanceId"), health, in_grace)
        return EmptyResult()

    def delete_auto_scaling_group(self: Any) -> ActionResult:
        """By force its members end at once: what their hooks wait for goes with the group."""
        backend, name = self.autoscaling_backend, self._get_param("AutoScalingGroupName")
        group = group_of(backend, name)
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

    extend(
        AutoScalingResponse,
        create_auto_scaling_group,
        set_desired_capacity,
        update_auto_scaling_group,
        terminate_instance_in_auto_scaling_group,
        set_instance_health,
        delete_auto_scaling_group,
    )
