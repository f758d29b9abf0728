"""The members of an Auto Scaling group: how each comes, how each goes, and how many there are."""

from collections.abc import Iterator
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

from rehearsal.aws.autoscaling import activities
from rehearsal.aws.autoscaling.lifecycle import LAUNCHING, TERMINATING, hold, release
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2 import volume_keys
from rehearsal.aws.ec2.launch import Launcher
from rehearsal.aws.ec2.launch_checks import Asked
from rehearsal.aws.extension import extend, refuse
from rehearsal.aws.lookup import member_of

RETRY_SECONDS = 30.0  # AWS tells no figure


def add_members(launcher: Launcher, group: Any, count: int, subnet_id: str) -> list[Any]:
    """Launch `count` members in one of the group's subnets, or as many as there is capacity for.

    Returns their instances. Raises EC2ClientError, and then none runs.
    """
    template = group.ec2_launch_template
    version = template.get_version(group.launch_template_version)
    tags = {**group.get_propagated_tags(), ASG_NAME_TAG: group.name}
    own = [{"Key": key, "Value": value} for key, value in tags.items()]
    asked: Asked = {"TagSpecifications": [{"ResourceType": "instance", "Tags": own}]}
    if group.placement_group:
        asked["Placement"] = {"GroupName": group.placement_group}
    asked.update(_in_subnet(version.data, subnet_id))
    named = {"LaunchTemplateId": template.id, "Version": version.number}
    reservation = launcher.launch(group.ec2_backend, asked, count, named, at_least=1, by_group=True)
    if any(instance.state == "terminated" for instance in reservation.instances):  # all have the same volumes
        raise refuse(volume_keys.CODE, volume_keys.MESSAGE)
    for instance in reservation.instances:
        instance.autoscaling_group = group
        protected = group.new_instances_protected_from_scale_in
        member: Any = InstanceState(instance, protected_from_scale_in=protected)
        member.template = {"LaunchTemplateId": template.id, "LaunchTemplateName": template.name}
        member.template["Version"] = str(version.number)
        group.instance_states.append(member)
        hold(member, LAUNCHING, lambda well, member=member: _launched(member, well))  # type: ignore[misc]
    return list(reservation.instances)


def _in_subnet(data: Any, subnet_id: str) -> Asked:
    interfaces = data.get("NetworkInterfaces")
    if not interfaces:
        return {"SubnetId": subnet_id}
    return {"NetworkInterfaces": [{**interface, "SubnetId": subnet_id} for interface in interfaces]}


def _launched(member: Any, well: bool) -> None:
    """In service from now on; or, its launch abandoned, replaced."""
    if well:
        member.lifecycle_state, member.in_service_since = "InService", CLOCK.now()
        activities.launched(member.auto_scaling_group, member.instance)
    else:
        group = member.auto_scaling_group
        remove(member)
        group.set_desired_capacity(group.desired_capacity)


def subnets_of(group: Any) -> list[str]:
    return group.vpc_zone_identifier.split(",") if group.vpc_zone_identifier else []


def end(member: Any) -> None:
    """Take a member out, through the group's termination hooks. From now on the instance knows that it is to end."""
    if is_ending(member):
        return
    release(member)
    member.lifecycle_state, member.instance.is_ending = "Terminating", True
    hold(member, TERMINATING, lambda _: remove(member))


def is_ending(member: Any) -> bool:
    return str(member.lifecycle_state).startswith("Terminating")


def remove(member: Any) -> None:
    """Terminate a member's instance now, without its hooks."""
    release(member)
    group = member.auto_scaling_group
    if member.instance.state != "terminated":
        member.instance.terminate()
    activities.terminated(group, member.instance)
    group.instance_states = [other for other in group.instance_states if other is not member]


def is_suspended(group: Any, *processes: str) -> bool:
    return any(each["ProcessName"] in processes for each in group.suspended_processes)


def notify_terminate_instances(self: Any, instance_ids: list[str]) -> None:
    """Members that EC2 terminated are replaced up to the desired capacity, unless the group must not launch."""
    for group in list(self.autoscaling_groups.values()):
        lost = [member for member in group.instance_states if member.instance.id in instance_ids]
        for member in lost:
            remove(member)
        if lost and not is_suspended(group, "ReplaceUnhealthy"):
            group.set_desired_capacity(group.desired_capacity)


def set_instance_health(self: Any, instance_id: str, health_status: str, in_grace: bool = True) -> None:
    """An unhealthy member is replaced; with `in_grace`, not before the group's grace period is over."""
    member = member_of(self, instance_id)
    group = member.auto_scaling_group
    if health_status != "Healthy":
        grace = group.health_check_grace_period if in_grace else 0
        since = getattr(member, "in_service_since", 0.0)
        if member.lifecycle_state != "InService" or CLOCK.now() < since + grace:
            return
    member.health_status = health_status
    if health_status != "Healthy" and not is_suspended(group, "ReplaceUnhealthy"):
        end(member)
        group.set_desired_capacity(group.desired_capacity)


def terminate_instance(self: Any, instance_id: str, should_decrement: bool) -> TerminateInstanceActivity:
    member = member_of(self, instance_id)
    group, original = member.auto_scaling_group, member.auto_scaling_group.desired_capacity
    if should_decrement and not is_ending(member):
        group.desired_capacity -= 1
    end(member)
    group.set_desired_capacity(group.desired_capacity)
    return TerminateInstanceActivity(member.instance, original)


def install(launcher: Launcher) -> None:
    def set_desired_capacity(self: Any, new_capacity: int | None) -> None:
        """Of members to remove the oldest go first; one that is ending, or in standby, is not counted."""
        self.retry_at = None
        self.desired_capacity = self.min_size if new_capacity is None else int(new_capacity)
        counted = [each for each in self.instance_states if not is_ending(each) and each.lifecycle_state != "Standby"]
        missing = self.desired_capacity - len(counted)
        if missing > 0 and not is_suspended(self, "Launch"):
            self.replace_autoscaling_group_instances(missing, {})
        elif missing < 0 and not is_suspended(self, "Terminate"):
            open_ones = [each for each in counted if not each.protected_from_scale_in]
            for member in sorted(open_ones, key=lambda each: each.instance.launched_at)[:-missing]:
                end(member)
        if self.name in self.autoscaling_backend.autoscaling_groups:
            self.autoscaling_backend.update_attached_elbs(self.name)
            self.autoscaling_backend.update_attached_target_groups(self.name)

    def replace_autoscaling_group_instances(self: Any, count_needed: int, propagated_tags: dict[str, str]) -> None:
        """Each member in the subnet that has fewest; a launch that EC2 refuses is tried again later, as in AWS."""
        for _ in range(count_needed):
            held = [member.instance.subnet_id for member in self.instance_states]
            subnet = min(subnets_of(self), key=held.count)
            try:
                add_members(launcher, self, 1, subnet)
            except EC2ClientError as refusal:
                activities.failed(self, subnet, refusal.message)
                self.retry_at = CLOCK.now() + RETRY_SECONDS
                return

    # moto tells of each member the template's default version, whatever it was launched from.
    extend(InstanceState, launch_template=property(lambda self: self.template), template=None)
    extend(FakeAutoScalingGroup, set_desired_capacity, replace_autoscaling_group_instances, retry_at=None)
    extend(AutoScalingBackend, notify_terminate_instances, set_instance_health, terminate_instance)
    CLOCK.watch(_retries)


def _retries() -> Iterator[Due]:
    backends: Any = autoscaling_backends
    for _, _, backend in backends.iter_backends():
        for group in backend.autoscaling_groups.values():
            if group.retry_at is not None:
                yield group.retry_at, lambda group=group: group.set_desired_capacity(group.desired_capacity)  # type: ignore[misc]
