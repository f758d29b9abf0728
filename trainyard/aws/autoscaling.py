"""Amazon EC2 Auto Scaling calls on groups and their instances."""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.aws.clients import client

# LaunchInstances accepts at most 100 instances per call.
MAX_INSTANCES_PER_CALL = 100


def describe_groups(region: str, groups: Iterable[str]) -> list[dict[str, Any]]:
    """Return the descriptions of the named groups; groups that do not exist are omitted."""
    response = client("autoscaling", region).describe_auto_scaling_groups(AutoScalingGroupNames=list(groups))
    descriptions: list[dict[str, Any]] = response["AutoScalingGroups"]
    return descriptions


def launch_template_of(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the launch template of a described group: LaunchTemplateId, and Version unless it is the default."""
    if policy := group.get("MixedInstancesPolicy"):
        specification: Mapping[str, Any] = policy["LaunchTemplate"]["LaunchTemplateSpecification"]
        return specification
    template: Mapping[str, Any] = group["LaunchTemplate"]
    return template


def describe_activities(region: str, group: str) -> list[dict[str, Any]]:
    """Return the latest 100 scaling activities of a group, newest first."""
    response = client("autoscaling", region).describe_scaling_activities(AutoScalingGroupName=group, MaxRecords=100)
    activities: list[dict[str, Any]] = response["Activities"]
    return activities


def launch_instances(region: str, group: str, subnet: str, count: int, token: str) -> dict[str, Any]:
    """Launch `count` instances synchronously, without retries by Auto Scaling; return the response of LaunchInstances.

    `token` makes the call idempotent; it has at most 64 characters.
    """
    response: dict[str, Any] = client("autoscaling", region).launch_instances(
        AutoScalingGroupName=group,
        RequestedCapacity=count,
        SubnetIds=[subnet],
        ClientToken=token,
        RetryStrategy="none",
    )
    return response


def set_subnet(region: str, group: str, subnet: str) -> None:
    """Let a group launch instances in this subnet only."""
    client("autoscaling", region).update_auto_scaling_group(AutoScalingGroupName=group, VPCZoneIdentifier=subnet)


def set_launch_target(region: str, group: str, subnet: str, reservation: str | None) -> None:
    """Let a group launch instances in this subnet only, and only into this capacity reservation, if any."""
    specification: dict[str, Any] = {"CapacityReservationPreference": "default"}  # that of the launch template
    if reservation is not None:
        specification = {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationIds": [reservation]},
        }
    client("autoscaling", region).update_auto_scaling_group(
        AutoScalingGroupName=group, VPCZoneIdentifier=subnet, CapacityReservationSpecification=specification
    )


def set_max_size(region: str, group: str, instances: int) -> None:
    """Set the maximum size of a group."""
    client("autoscaling", region).update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=instances)


def set_desired_capacity(region: str, group: str, instances: int) -> None:
    """Set the desired capacity of a group, regardless of cooldown periods."""
    client("autoscaling", region).set_desired_capacity(
        AutoScalingGroupName=group, DesiredCapacity=instances, HonorCooldown=False
    )


def terminate_instance(region: str, instance: str, *, is_replaced: bool = False) -> None:
    """Terminate a member of a group. Unless `is_replaced`, decrement the desired capacity, so that none replaces it."""
    client("autoscaling", region).terminate_instance_in_auto_scaling_group(
        InstanceId=instance, ShouldDecrementDesiredCapacity=not is_replaced
    )


def complete_lifecycle_action(region: str, group: str, hook: str, instance: str) -> None:
    """Let the termination of an instance that waits at a lifecycle hook continue."""
    client("autoscaling", region).complete_lifecycle_action(
        AutoScalingGroupName=group, LifecycleHookName=hook, InstanceId=instance, LifecycleActionResult="CONTINUE"
    )


def set_unhealthy(region: str, instance: str) -> None:
    """Mark a member of a group unhealthy, regardless of the health check grace period: the group replaces it."""
    client("autoscaling", region).set_instance_health(
        InstanceId=instance, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
    )
