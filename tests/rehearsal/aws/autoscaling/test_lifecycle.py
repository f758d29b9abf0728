"""Lifecycle hooks, replacement of unhealthy instances, and every kind of termination of a group's instance."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.instances import instance_record

TERMINATING, LAUNCHING = "autoscaling:EC2_INSTANCE_TERMINATING", "autoscaling:EC2_INSTANCE_LAUNCHING"
HEARTBEAT = 120


def put_hook(client: Client, group: str, name: str = "leave", **overrides: Any) -> None:
    whole = {
        "LifecycleTransition": TERMINATING,
        "HeartbeatTimeout": HEARTBEAT,
        "DefaultResult": "CONTINUE",
        **overrides,
    }
    client("autoscaling").put_lifecycle_hook(AutoScalingGroupName=group, LifecycleHookName=name, **whole)


def launch(client: Client, group: str, count: int = 1) -> list[str]:
    response = client("autoscaling").launch_instances(
        AutoScalingGroupName=group, RequestedCapacity=count, ClientToken=group
    )
    return [record for pool in response["Instances"] for record in pool["InstanceIds"]]


def members(client: Client, group: str) -> dict[str, str]:
    """Return the lifecycle state of each instance of a group."""
    (described,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])[
        "AutoScalingGroups"
    ]
    return {each["InstanceId"]: each["LifecycleState"] for each in described["Instances"]}


def state(client: Client, instance: str) -> str:
    (described,) = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    return str(described["Instances"][0]["State"]["Name"])


def shrink(client: Client, group: str) -> None:
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)


def complete(client: Client, group: str, instance: str, result: str = "CONTINUE", hook: str = "leave") -> None:
    client("autoscaling").complete_lifecycle_action(
        AutoScalingGroupName=group, LifecycleHookName=hook, InstanceId=instance, LifecycleActionResult=result
    )


def beat(client: Client, group: str, instance: str) -> None:
    client("autoscaling").record_lifecycle_action_heartbeat(
        AutoScalingGroupName=group, LifecycleHookName="leave", InstanceId=instance
    )


@pytest.fixture
def held(client: Client, group: Callable[..., str]) -> tuple[str, str]:
    """Create a group with one instance, which the termination hook holds; return both."""
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    shrink(client, name)
    return name, instance


def test_termination_hook_holds_the_instance(client: Client, held: tuple[str, str]) -> None:
    name, instance = held
    assert members(client, name) == {instance: "Terminating:Wait"}
    assert state(client, instance) == "running"


def test_target_lifecycle_state_is_terminated_at_once(aws: EmulatedAws, held: tuple[str, str]) -> None:
    described = instance_record(aws, held[1])
    assert (described.state, described.lifecycle_state, described.terminated_time) == ("running", "Terminated", None)


@pytest.mark.parametrize("result", ["CONTINUE", "ABANDON"])
def test_completed_action_terminates_the_instance(client: Client, held: tuple[str, str], result: str) -> None:
    name, instance = held
    complete(client, name, instance, result)
    assert (members(client, name), state(client, instance)) == ({}, "terminated")


def test_lifecycle_action_is_completed_once(client: Client, held: tuple[str, str]) -> None:
    complete(client, *held)
    with pytest.raises(ClientError, match=f"No active Lifecycle Action found with instance ID {held[1]}"):
        complete(client, *held)


def test_lifecycle_action_requires_the_hook_and_group(client: Client, held: tuple[str, str]) -> None:
    for group, hook in ((held[0], "other"), ("other", "leave")):
        with pytest.raises(ClientError, match="No active Lifecycle Action"):
            complete(client, group, held[1], hook=hook)
    assert state(client, held[1]) == "running"


def test_hook_times_out_by_the_account_clock(client: Client, aws: EmulatedAws, held: tuple[str, str]) -> None:
    aws.advance_clock(HEARTBEAT - 60)
    assert state(client, held[1]) == "running"
    aws.advance_clock(61)
    assert (members(client, held[0]), state(client, held[1])) == ({}, "terminated")


def test_heartbeat_extends_the_wait(client: Client, aws: EmulatedAws, held: tuple[str, str]) -> None:
    aws.advance_clock(HEARTBEAT - 60)
    beat(client, *held)
    aws.advance_clock(HEARTBEAT - 30)
    assert state(client, held[1]) == "running"
    aws.advance_clock(31)
    assert state(client, held[1]) == "terminated"


def test_heartbeats_do_not_exceed_the_global_timeout(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    put_hook(client, name, HeartbeatTimeout=300)
    (hook,) = client("autoscaling").describe_lifecycle_hooks(AutoScalingGroupName=name)["LifecycleHooks"]
    assert hook["GlobalTimeout"] == 30000
    (instance,) = launch(client, name)
    shrink(client, name)
    for _ in range(119):
        aws.advance_clock(250)
        beat(client, name, instance)
    aws.advance_clock(251)  # 49 s before the end of the last heartbeat
    assert state(client, instance) == "terminated"


def test_hook_update_changes_only_specified_attributes(client: Client, group: Callable[..., str]) -> None:
    name, autoscaling = group(), client("autoscaling")
    put_hook(client, name)
    autoscaling.put_lifecycle_hook(AutoScalingGroupName=name, LifecycleHookName="leave", HeartbeatTimeout=300)
    (described,) = autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=name)["LifecycleHooks"]
    assert described == {
        "AutoScalingGroupName": name,
        "LifecycleHookName": "leave",
        "LifecycleTransition": TERMINATING,
        "HeartbeatTimeout": 300,
        "GlobalTimeout": 30000,
        "DefaultResult": "CONTINUE",
    }


@pytest.mark.parametrize(
    "wrong",
    [{"HeartbeatTimeout": 29}, {"HeartbeatTimeout": 7201}, {"DefaultResult": "STOP"}, {"LifecycleTransition": "x"}],
)
def test_invalid_hook_is_refused(client: Client, group: Callable[..., str], wrong: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="ValidationError"):
        put_hook(client, group(), **wrong)


def test_hook_of_an_unknown_group_is_refused(client: Client) -> None:
    with pytest.raises(ClientError, match="AutoScalingGroup name not found"):
        put_hook(client, "none")


def test_deleting_a_hook_ends_the_waits(client: Client, held: tuple[str, str]) -> None:
    assert state(client, held[1]) == "running"
    client("autoscaling").delete_lifecycle_hook(AutoScalingGroupName=held[0], LifecycleHookName="leave")
    assert state(client, held[1]) == "terminated"


def test_both_of_two_hooks_must_be_completed(client: Client, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name)
    put_hook(client, name, "second")
    (instance,) = launch(client, name)
    shrink(client, name)
    complete(client, name, instance)
    assert state(client, instance) == "running"
    complete(client, name, instance, hook="second")
    assert state(client, instance) == "terminated"


def terminate_member(client: Client, group: str, instance: str) -> None:
    client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=instance, ShouldDecrementDesiredCapacity=True
    )


def mark_unhealthy(client: Client, group: str, instance: str) -> None:
    client("autoscaling").set_instance_health(InstanceId=instance, HealthStatus="Unhealthy")


def lower_maximum(client: Client, group: str, instance: str) -> None:
    client("autoscaling").update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=0)


@pytest.mark.parametrize("way", [terminate_member, mark_unhealthy, lower_maximum])
def test_every_termination_by_the_group_runs_the_hook(client: Client, group: Callable[..., str], way: Any) -> None:
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    way(client, name, instance)
    assert (members(client, name)[instance], state(client, instance)) == ("Terminating:Wait", "running")


def test_ec2_terminates_without_the_hook(client: Client, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    client("ec2").terminate_instances(InstanceIds=[instance])
    assert state(client, instance) == "terminated"
    assert instance not in members(client, name)


def test_ec2_terminates_an_instance_held_by_a_hook(client: Client, aws: EmulatedAws, held: tuple[str, str]) -> None:
    assert state(client, held[1]) == "running"
    client("ec2").terminate_instances(InstanceIds=[held[1]])
    assert (members(client, held[0]), state(client, held[1])) == ({}, "terminated")
    with pytest.raises(ClientError, match="No active Lifecycle Action"):
        complete(client, *held)


def test_group_with_a_held_instance_is_deleted_only_with_force(client: Client, held: tuple[str, str]) -> None:
    name, instance = held
    with pytest.raises(ClientError, match="ResourceInUse"):
        client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name)
    client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
    assert state(client, instance) == "terminated"


def test_held_instance_does_not_count_as_capacity(client: Client, held: tuple[str, str]) -> None:
    name, instance = held
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)
    described = members(client, name)
    assert len(described) == 2
    assert described.pop(instance) == "Terminating:Wait"
    assert list(described.values()) == ["InService"]


def test_unhealthy_instance_is_replaced(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = launch(client, name, 2)
    mark_unhealthy(client, name, ids[0])
    described = members(client, name)
    assert state(client, ids[0]) == "terminated"
    assert len(described) == 2
    assert ids[1] in described
    assert ids[0] not in described


def test_healthy_instance_is_not_replaced(client: Client, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    client("autoscaling").set_instance_health(InstanceId=instance, HealthStatus="Healthy")
    assert members(client, name) == {instance: "InService"}


def test_grace_period_is_respected_by_default(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group(HealthCheckGracePeriod=600)
    first, second = launch(client, name, 2)
    mark_unhealthy(client, name, first)
    assert state(client, first) == "running"
    client("autoscaling").set_instance_health(
        InstanceId=second, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
    )
    assert state(client, second) == "terminated"
    aws.advance_clock(601)
    mark_unhealthy(client, name, first)
    assert state(client, first) == "terminated"


def test_unhealthy_instance_is_not_replaced_while_suspended(client: Client, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    client("autoscaling").suspend_processes(AutoScalingGroupName=name, ScalingProcesses=["ReplaceUnhealthy"])
    mark_unhealthy(client, name, instance)
    (described,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    (member,) = described["Instances"]
    assert (member["InstanceId"], member["HealthStatus"]) == (instance, "Unhealthy")
    assert (member["LifecycleState"], state(client, instance)) == ("InService", "running")


def test_health_of_an_instance_outside_groups_is_refused(client: Client) -> None:
    with pytest.raises(ClientError, match="ValidationError"):
        mark_unhealthy(client, "", "i-00000000000000000")


def test_launch_hook_holds_a_new_instance(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name, "enter", LifecycleTransition=LAUNCHING)
    (instance,) = launch(client, name)
    assert members(client, name) == {instance: "Pending:Wait"}
    assert instance_record(aws, instance).lifecycle_state == "InService"
    complete(client, name, instance, hook="enter")
    assert members(client, name) == {instance: "InService"}


def test_abandoned_launch_is_replaced(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name, "enter", LifecycleTransition=LAUNCHING, DefaultResult="ABANDON")
    (instance,) = launch(client, name)
    aws.advance_clock(HEARTBEAT + 1)
    assert state(client, instance) == "terminated"
    (other,) = members(client, name).items()
    assert other[0] != instance
    assert other[1] == "Pending:Wait"
