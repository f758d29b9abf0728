"""Auto Scaling groups: launches as their template asks, limits, deletion, and what AWS answers to a wrong name."""

from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.models import ASG_NAME_TAG, AutoScalingBackend, FakeAutoScalingGroup, InstanceState
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError

from rehearsal.aws.extension import extend
from rehearsal.aws.launch import Launcher, merged
from rehearsal.aws.launch_checks import Asked, problem

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


def group_of(backend: Any, name: str) -> Any:
    """The group of this name. Raises ValidationError as AWS does when there is none."""
    if name not in backend.autoscaling_groups:
        raise ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found")
    return backend.autoscaling_groups[name]


def add_members(launcher: Launcher, group: Any, count: int, subnet_id: str) -> list[Any]:
    """Launch members of a group in one of its subnets. Raises EC2ClientError, and then none was launched."""
    template = group.ec2_launch_template
    version = template.get_version(group.launch_template_version)
    tags = {**group.get_propagated_tags(), ASG_NAME_TAG: group.name}
    own = [{"Key": key, "Value": value} for key, value in tags.items()]
    asked: Asked = {"TagSpecifications": [{"ResourceType": "instance", "Tags": own}]}
    if group.placement_group:
        asked["Placement"] = {"GroupName": group.placement_group}
    asked.update(_in_subnet(version.data, subnet_id))
    reservation = launcher.launch(
        group.ec2_backend, asked, count, {"LaunchTemplateId": template.id, "Version": version.number}
    )
    for instance in reservation.instances:
        instance.autoscaling_group = group
        protected = group.new_instances_protected_from_scale_in
        group.instance_states.append(InstanceState(instance, protected_from_scale_in=protected))
    return list(reservation.instances)


def _in_subnet(data: Any, subnet_id: str) -> Asked:
    interfaces = data.get("NetworkInterfaces")
    if not interfaces:
        return {"SubnetId": subnet_id}
    return {"NetworkInterfaces": [{**interface, "SubnetId": subnet_id} for interface in interfaces]}


def subnets_of(group: Any) -> list[str]:
    return group.vpc_zone_identifier.split(",") if group.vpc_zone_identifier else []


def install(launcher: Launcher) -> None:
    resize, create = FakeAutoScalingGroup.set_desired_capacity, AutoScalingBackend.create_auto_scaling_group

    def replace_autoscaling_group_instances(self: Any, count_needed: int, propagated_tags: dict[str, str]) -> None:
        """Each member in the subnet that has fewest; a launch that EC2 refuses leaves the group short, as in AWS."""
        for _ in range(count_needed):
            held = [state.instance.subnet_id for state in self.instance_states]
            try:
                add_members(launcher, self, 1, min(subnets_of(self), key=held.count))
            except EC2ClientError:
                return

    def set_desired_capacity(self: Any, new_capacity: int | None) -> None:
        """Of members to remove, the oldest go first."""
        self.instance_states.sort(key=lambda state: state.instance.launch_time)
        resize(self, new_capacity)

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
        return create(self, name, **given)

    extend(FakeAutoScalingGroup, replace_autoscaling_group_instances, set_desired_capacity)
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
        return answer

    def terminate_instance_in_auto_scaling_group(self: Any) -> ActionResult:
        wanted = self._get_param("InstanceId")
        found = self.autoscaling_backend.describe_auto_scaling_instances([wanted])
        if not found:
            raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {wanted}")
        group = found[0].auto_scaling_group
        if self._get_bool_param("ShouldDecrementDesiredCapacity", False) and group.desired_capacity <= group.min_size:
            raise ValidationError(
                f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without replacement "
                "will violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or "
                "lower group's min size."
            )
        return end(self)

    def delete_auto_scaling_group(self: Any) -> ActionResult:
        backend, name = self.autoscaling_backend, self._get_param("AutoScalingGroupName")
        group = group_of(backend, name)
        if group.instance_states and not self._get_bool_param("ForceDelete", False):
            raise AutoscalingClientError(
                "ResourceInUse",
                "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) "
                "still in the group.",
            )
        backend.delete_auto_scaling_group(name)
        for index in (backend.scheduled_actions, backend.lifecycle_hooks, backend.policies):
            for key in [key for key, each in index.items() if each.auto_scaling_group_name == name]:
                del index[key]
        return EmptyResult()

    def notify_terminate_instances(self: Any, instance_ids: list[str]) -> None:
        """Members that EC2 terminated are replaced up to the desired capacity, unless the group must not launch."""
        for group in list(self.autoscaling_groups.values()):
            kept = [state for state in group.instance_states if state.instance.id not in instance_ids]
            lost = len(kept) < len(group.instance_states)
            group.instance_states = kept
            stopped = {each["ProcessName"] for each in group.suspended_processes} & {"Launch", "ReplaceUnhealthy"}
            if lost and not stopped:
                group.set_desired_capacity(group.desired_capacity)

    extend(
        AutoScalingResponse,
        create_auto_scaling_group,
        set_desired_capacity,
        update_auto_scaling_group,
        terminate_instance_in_auto_scaling_group,
        delete_auto_scaling_group,
    )
    extend(AutoScalingBackend, notify_terminate_instances)
