"""Instances of an Auto Scaling group (its members): launch, termination, replacement and desired capacity."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

from moto.autoscaling.models import (
    ASG_NAME_TAG,
    AutoScalingBackend,
    FakeAutoScalingGroup,
    InstanceState,
    TerminateInstanceActivity,
    autoscaling_backends,
)
from moto.ec2.exceptions import EC2ClientError

from rehearsal.aws.active_faults import InsufficientCapacityError
from rehearsal.aws.autoscaling import activities
from rehearsal.aws.autoscaling.lifecycle import LAUNCHING, TERMINATING, release, start_hooks
from rehearsal.aws.autoscaling.mixed_instances import launch_pools
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2 import volume_keys
from rehearsal.aws.ec2.launch import Launcher
from rehearsal.aws.ec2.launch_validation import LaunchParameters
from rehearsal.aws.ec2.transitions import after_transition
from rehearsal.aws.lookup import find_member
from rehearsal.aws.moto_extension import ec2_error, extend

RETRY_SECONDS = 30.0  # an assumption: AWS does not document the interval


@dataclass
class MemberLaunch:
    """Instances that a launch started, and EC2's error for each instance type that had too few, by its name."""

    instances: list[Any] = field(default_factory=list)
    errors: dict[str, EC2ClientError] = field(default_factory=dict)


def add_members(launcher: Launcher, group: Any, count: int, subnet_id: str) -> MemberLaunch:
    """Launch up to `count` members in one of the group's subnets, from one pool after the other."""
    version = group.ec2_launch_template.get_version(group.launch_template_version)
    zone = group.ec2_backend.get_subnet(subnet_id).availability_zone
    launched = MemberLaunch()
    for pool in launch_pools(group, version.data, zone, count):
        missing = count - len(launched.instances)
        if not missing:
            break
        name = pool.get("InstanceType") or version.instance_type
        try:
            started = _launch_members(launcher, group, pool, missing, subnet_id)
        except EC2ClientError as error:
            launched.errors[name] = error
            continue
        launched.instances += started
        if len(started) < missing:
            launched.errors[name] = InsufficientCapacityError(zone, name)
    return launched


def _launch_members(launcher: Launcher, group: Any, pool: LaunchParameters, count: int, subnet_id: str) -> list[Any]:
    """Launch up to `count` members from one pool. Raises EC2ClientError if none can be launched."""
    template = group.ec2_launch_template
    version = template.get_version(group.launch_template_version)
    tags = {**group.get_propagated_tags(), ASG_NAME_TAG: group.name}
    tag_list = [{"Key": key, "Value": value} for key, value in tags.items()]
    parameters: LaunchParameters = {**pool, "TagSpecifications": [{"ResourceType": "instance", "Tags": tag_list}]}
    if group.placement_group:
        parameters["Placement"] = {"GroupName": group.placement_group}
    parameters.update(_subnet_parameters(version.data, subnet_id))
    parameters.update(_reservation_parameters(group))
    template_version = {"LaunchTemplateId": template.id, "Version": version.number}
    reservation = launcher.launch(
        group.ec2_backend, parameters, count, template_version, minimum_count=1, by_auto_scaling=True
    )
    if any(instance.state == "terminated" for instance in reservation.instances):  # all instances have the same volumes
        raise ec2_error(volume_keys.CODE, volume_keys.MESSAGE)
    for instance in reservation.instances:
        instance.autoscaling_group = group
        protected = group.new_instances_protected_from_scale_in
        member: Any = InstanceState(instance, protected_from_scale_in=protected)
        member.template = {"LaunchTemplateId": template.id, "LaunchTemplateName": template.name}
        member.template["Version"] = str(version.number)
        member.lifecycle_state = "Pending"
        group.instance_states.append(member)
        after_transition(instance, lambda member=member: _start_launch_hooks(member))  # type: ignore[misc]
    return list(reservation.instances)


def _start_launch_hooks(member: Any) -> None:
    start_hooks(member, LAUNCHING, lambda completed: _complete_launch(member, completed))


def _subnet_parameters(data: Any, subnet_id: str) -> LaunchParameters:
    interfaces = data.get("NetworkInterfaces")
    if not interfaces:
        return {"SubnetId": subnet_id}
    return {"NetworkInterfaces": [{**interface, "SubnetId": subnet_id} for interface in interfaces]}


def _reservation_parameters(group: Any) -> LaunchParameters:
    """Return the launch parameters of the group's CapacityReservationSpecification, which overrides the template's."""
    specification = group.capacity_reservation_specification or {}
    preference = specification.get("CapacityReservationPreference", "default")
    if preference == "default":
        return {}
    ids = (specification.get("CapacityReservationTarget") or {}).get("CapacityReservationIds")
    parameters = {"CapacityReservationTarget": {"CapacityReservationId": ids[0]}} if ids else {}
    return {"CapacityReservationSpecification": parameters or {"CapacityReservationPreference": preference}}


def _complete_launch(member: Any, completed: bool) -> None:
    """Put a member in service after its hooks; if a hook abandoned the launch, replace the member."""
    if completed:
        member.lifecycle_state, member.in_service_since = "InService", CLOCK.now()
        activities.record_launch(member.auto_scaling_group, member.instance)
    else:
        group = member.auto_scaling_group
        remove(member)
        group.set_desired_capacity(group.desired_capacity)


def group_subnet_ids(group: Any) -> list[str]:
    """Return the subnet ids of a group."""
    return group.vpc_zone_identifier.split(",") if group.vpc_zone_identifier else []


def terminate_member(member: Any) -> None:
    """Terminate a member after the group's termination hooks; its target lifecycle state is Terminated at once."""
    if is_terminating(member):
        return
    release(member)
    member.lifecycle_state, member.instance.is_terminating = "Terminating", True
    start_hooks(member, TERMINATING, lambda _: remove(member))


def is_terminating(member: Any) -> bool:
    """Return whether the member's termination has started."""
    return str(member.lifecycle_state).startswith("Terminating")


def remove(member: Any) -> None:
    """Terminate a member's instance at once, without hooks, and remove it from the group once it is terminated."""
    release(member)
    group = member.auto_scaling_group
    member.lifecycle_state, member.instance.is_terminating = "Terminating:Proceed", True
    member.instance.terminate()

    def remove_from_group() -> None:
        activities.record_termination(group, member.instance)
        group.instance_states = [other for other in group.instance_states if other is not member]

    after_transition(member.instance, remove_from_group)


def is_launching(group: Any) -> bool:
    """Return whether an instance of the group is pending, so that Auto Scaling refuses other changes."""
    return any(member.lifecycle_state == "Pending" for member in group.instance_states)


def is_suspended(group: Any, *processes: str) -> bool:
    """Return whether one of the processes is suspended for the group."""
    return any(process["ProcessName"] in processes for process in group.suspended_processes)


def notify_terminate_instances(self: Any, instance_ids: list[str]) -> None:
    """Replace members that EC2 terminated, up to the desired capacity, unless ReplaceUnhealthy is suspended."""
    for group in list(self.autoscaling_groups.values()):
        terminated = [member for member in group.instance_states if member.instance.id in instance_ids]
        for member in terminated:
            remove(member)
        if terminated and not is_suspended(group, "ReplaceUnhealthy"):
            group.set_desired_capacity(group.desired_capacity)


def set_instance_health(self: Any, instance_id: str, health_status: str, respect_grace_period: bool = True) -> None:
    """Set the health of a member and replace it if unhealthy.

    `respect_grace_period`: ignore the call during the group's health check grace period.
    """
    member = find_member(self, instance_id)
    group = member.auto_scaling_group
    if health_status != "Healthy":
        grace = group.health_check_grace_period if respect_grace_period else 0
        since = getattr(member, "in_service_since", 0.0)
        if member.lifecycle_state != "InService" or CLOCK.now() < since + grace:
            return
    member.health_status = health_status
    if health_status != "Healthy" and not is_suspended(group, "ReplaceUnhealthy"):
        if group.instance_maintenance_policy is None:
            terminate_member(member)
        group.set_desired_capacity(group.desired_capacity)


def terminate_instance(self: Any, instance_id: str, should_decrement: bool) -> TerminateInstanceActivity:
    """Terminate a member and return moto's activity; the group replaces it unless the capacity is decremented."""
    member = find_member(self, instance_id)
    group, initial_capacity = member.auto_scaling_group, member.auto_scaling_group.desired_capacity
    if should_decrement and not is_terminating(member):
        group.desired_capacity -= 1
    terminate_member(member)
    group.set_desired_capacity(group.desired_capacity)
    return TerminateInstanceActivity(member.instance, initial_capacity)


def set_desired_capacity(self: Any, new_capacity: int | None) -> None:
    """Launch or terminate members, oldest first. Terminating members and those in standby do not count.

    Unhealthy members, which exist in groups with an instance maintenance policy, do not count either.
    """
    self.retry_at = None
    self.desired_capacity = self.min_size if new_capacity is None else int(new_capacity)
    present = [each for each in self.instance_states if not is_terminating(each) and each.lifecycle_state != "Standby"]
    counted = [each for each in present if each.health_status == "Healthy"]
    if _have_replacements(self):
        for member in present:
            if member not in counted:
                terminate_member(member)
    # That a replacement does not exceed the maximum size either is an assumption.
    missing = min(self.desired_capacity - len(counted), max(0, self.max_size - len(present)))
    if missing > 0 and not is_suspended(self, "Launch"):
        self.replace_autoscaling_group_instances(missing, {})
    elif missing < 0 and not is_suspended(self, "Terminate"):
        unprotected = [member for member in counted if not member.protected_from_scale_in]
        for member in sorted(unprotected, key=lambda member: member.instance.launched_at)[:-missing]:
            terminate_member(member)
    if self.name in self.autoscaling_backend.autoscaling_groups:
        self.autoscaling_backend.update_attached_elbs(self.name)
        self.autoscaling_backend.update_attached_target_groups(self.name)


def _have_replacements(group: Any) -> bool:
    """Return whether enough healthy members are in service, so that unhealthy ones are terminated."""
    members = [(each.health_status, each.lifecycle_state) for each in group.instance_states]
    return members.count(("Healthy", "InService")) >= int(group.desired_capacity)


def _due_replacements() -> Iterator[Due]:
    """Yield the terminations of unhealthy members whose replacements are in service.

    Auto Scaling user guide, "Instance maintenance policies": the group first launches an instance and waits for it.
    """
    backends: Any = autoscaling_backends
    for _, _, backend in backends.iter_backends():
        for group in backend.autoscaling_groups.values():
            unhealthy = [each for each in group.instance_states if each.health_status != "Healthy"]
            waiting = group.instance_maintenance_policy and not all(map(is_terminating, unhealthy))
            if waiting and _have_replacements(group):
                when = max((getattr(each, "in_service_since", 0.0) for each in group.instance_states), default=0.0)
                yield when, lambda group=group: group.set_desired_capacity(group.desired_capacity)  # type: ignore[misc]


def _launch_missing(self: Any, launcher: Launcher, count_needed: int, propagated_tags: dict[str, str]) -> None:
    """Launch each member in the subnet with the fewest members. Retry a failed launch later, as AWS does."""
    for _ in range(count_needed):
        used_subnets = [member.instance.subnet_id for member in self.instance_states]
        subnet = min(group_subnet_ids(self), key=used_subnets.count)
        launched = add_members(launcher, self, 1, subnet)
        if not launched.instances:
            error = list(launched.errors.values())[-1]
            activities.record_failed_launch(self, subnet, error.message)
            self.retry_at = CLOCK.now() + RETRY_SECONDS
            return


def install(launcher: Launcher) -> None:
    """Replace moto's launches, terminations and capacity changes of groups."""
    # moto reports the template's default version for each member, even if it was launched from another version.
    extend(InstanceState, launch_template=property(lambda self: self.template), template=None)
    extend(
        FakeAutoScalingGroup,
        set_desired_capacity,
        replace_autoscaling_group_instances=partialmethod(_launch_missing, launcher),
        retry_at=None,
        capacity_reservation_specification=None,
        instance_maintenance_policy=None,
    )
    extend(AutoScalingBackend, notify_terminate_instances, set_instance_health, terminate_instance)
    CLOCK.add_source(_due_retries)
    CLOCK.add_source(_due_replacements)


def _due_retries() -> Iterator[Due]:
    backends: Any = autoscaling_backends
    for _, _, backend in backends.iter_backends():
        for group in backend.autoscaling_groups.values():
            if group.retry_at is not None:
                yield group.retry_at, lambda group=group: group.set_desired_capacity(group.desired_capacity)  # type: ignore[misc]
