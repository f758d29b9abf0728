"""Life-cycle hooks, replacement of unhealthy members, and every way to end a member, as a user of AWS meets them."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.control_models import InstanceTruth
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client

TERMINATING, LAUNCHING = "autoscaling:EC2_INSTANCE_TERMINATING", "autoscaling:EC2_INSTANCE_LAUNCHING"
HEARTBEAT = 120


def put_hook(client: Client, group: str, name: str = "leave", **given: Any) -> None:
    whole = {"LifecycleTransition": TERMINATING, "HeartbeatTimeout": HEARTBEAT, "DefaultResult": "CONTINUE", **given}
    client("autoscaling").put_lifecycle_hook(AutoScalingGroupName=group, LifecycleHookName=name, **whole)


def launch(client: Client, group: str, count: int = 1) -> list[str]:
    answer = client("autoscaling").launch_instances(
        AutoScalingGroupName=group, RequestedCapacity=count, ClientToken=group
    )
    return [one for pool in answer["Instances"] for one in pool["InstanceIds"]]


def members(client: Client, group: str) -> dict[str, str]:
    """Life-cycle state by instance."""
    (found,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
    return {each["InstanceId"]: each["LifecycleState"] for each in found["Instances"]}


def state(client: Client, instance: str) -> str:
    (found,) = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    return str(found["Instances"][0]["State"]["Name"])


def truth(aws: EmulatedAws, instance: str) -> InstanceTruth:
    return next(each for each in aws.instances() if each.id == instance)


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
    """A group and its one instance, held by the termination hook."""
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    shrink(client, name)
    return name, instance


def test_a_terminating_hook_holds_the_instance(client: Client, held: tuple[str, str]) -> None:
    name, instance = held
    assert members(client, name) == {instance: "Terminating:Wait"}
    assert state(client, instance) == "running"


def test_the_instance_knows_its_end_from_the_moment_it_begins(aws: EmulatedAws, held: tuple[str, str]) -> None:
    found = truth(aws, held[1])
    assert (found.state, found.lifecycle_state, found.terminated_time) == ("running", "Terminated", None)


@pytest.mark.parametrize("result", ["CONTINUE", "ABANDON"])
def test_a_completed_action_ends_the_instance(client: Client, held: tuple[str, str], result: str) -> None:
    name, instance = held
    complete(client, name, instance, result)
    assert (members(client, name), state(client, instance)) == ({}, "terminated")


def test_an_action_is_completed_once(client: Client, held: tuple[str, str]) -> None:
    complete(client, *held)
    with pytest.raises(ClientError, match=f"No active Lifecycle Action found with instance ID {held[1]}"):
        complete(client, *held)


def test_no_action_is_completed_under_another_hook_or_group(client: Client, held: tuple[str, str]) -> None:
    for group, hook in ((held[0], "other"), ("other", "leave")):
        with pytest.raises(ClientError, match="No active Lifecycle Action"):
            complete(client, group, held[1], hook=hook)
    assert state(client, held[1]) == "running"


def test_the_hook_times_out_on_the_account_s_clock(client: Client, aws: EmulatedAws, held: tuple[str, str]) -> None:
    aws.advance(HEARTBEAT - 60)
    assert state(client, held[1]) == "running"
    aws.advance(61)
    assert (members(client, held[0]), state(client, held[1])) == ({}, "terminated")


def test_a_heartbeat_extends_the_wait(client: Client, aws: EmulatedAws, held: tuple[str, str]) -> None:
    aws.advance(HEARTBEAT - 60)
    beat(client, *held)
    aws.advance(HEARTBEAT - 30)
    assert state(client, held[1]) == "running"
    aws.advance(31)
    assert state(client, held[1]) == "terminated"


def test_heartbeats_extend_no_further_than_the_global_timeout(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    put_hook(client, name, HeartbeatTimeout=300)
    (hook,) = client("autoscaling").describe_lifecycle_hooks(AutoScalingGroupName=name)["LifecycleHooks"]
    assert hook["GlobalTimeout"] == 30000
    (instance,) = launch(client, name)
    shrink(client, name)
    for _ in range(119):
        aws.advance(250)
        beat(client, name, instance)
    aws.advance(251)  # 49 s before the last heartbeat is over
    assert state(client, instance) == "terminated"


def test_a_hook_shows_what_it_was_made_with_and_changes_only_what_is_given(
    client: Client, group: Callable[..., str]
) -> None:
    name, autoscaling = group(), client("autoscaling")
    put_hook(client, name)
    autoscaling.put_lifecycle_hook(AutoScalingGroupName=name, LifecycleHookName="leave", HeartbeatTimeout=300)
    (found,) = autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=name)["LifecycleHooks"]
    assert found == {
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
def test_a_wrong_hook_is_refused(client: Client, group: Callable[..., str], wrong: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="ValidationError"):
        put_hook(client, group(), **wrong)


def test_a_hook_of_no_group_is_refused(client: Client) -> None:
    with pytest.raises(ClientError, match="AutoScalingGroup name not found"):
        put_hook(client, "none")


def test_a_deleted_hook_lets_go_what_it_held(client: Client, held: tuple[str, str]) -> None:
    assert state(client, held[1]) == "running"
    client("autoscaling").delete_lifecycle_hook(AutoScalingGroupName=held[0], LifecycleHookName="leave")
    assert state(client, held[1]) == "terminated"


def test_of_two_hooks_both_must_be_completed(client: Client, group: Callable[..., str]) -> None:
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
def test_every_way_of_the_group_takes_the_hook(client: Client, group: Callable[..., str], way: Any) -> None:
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


def test_ec2_ends_a_held_instance_for_good(client: Client, aws: EmulatedAws, held: tuple[str, str]) -> None:
    assert state(client, held[1]) == "running"
    client("ec2").terminate_instances(InstanceIds=[held[1]])
    assert (members(client, held[0]), state(client, held[1])) == ({}, "terminated")
    with pytest.raises(ClientError, match="No active Lifecycle Action"):
        complete(client, *held)


def test_a_group_with_a_held_instance_is_deleted_by_force_only(client: Client, held: tuple[str, str]) -> None:
    name, instance = held
    with pytest.raises(ClientError, match="ResourceInUse"):
        client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name)
    client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
    assert state(client, instance) == "terminated"


def test_a_held_instance_is_not_counted_as_capacity(client: Client, held: tuple[str, str]) -> None:
    name, instance = held
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)
    found = members(client, name)
    assert len(found) == 2
    assert found.pop(instance) == "Terminating:Wait"
    assert list(found.values()) == ["InService"]


def test_an_unhealthy_member_is_replaced(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = launch(client, name, 2)
    mark_unhealthy(client, name, ids[0])
    found = members(client, name)
    assert state(client, ids[0]) == "terminated"
    assert len(found) == 2
    assert ids[1] in found
    assert ids[0] not in found


def test_a_healthy_member_stays(client: Client, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    client("autoscaling").set_instance_health(InstanceId=instance, HealthStatus="Healthy")
    assert members(client, name) == {instance: "InService"}


def test_the_grace_period_is_respected_unless_told_otherwise(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group(HealthCheckGracePeriod=600)
    first, second = launch(client, name, 2)
    mark_unhealthy(client, name, first)
    assert state(client, first) == "running"
    client("autoscaling").set_instance_health(
        InstanceId=second, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
    )
    assert state(client, second) == "terminated"
    aws.advance(601)
    mark_unhealthy(client, name, first)
    assert state(client, first) == "terminated"


def test_no_member_is_replaced_while_replacement_is_suspended(client: Client, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    client("autoscaling").suspend_processes(AutoScalingGroupName=name, ScalingProcesses=["ReplaceUnhealthy"])
    mark_unhealthy(client, name, instance)
    (found,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    (member,) = found["Instances"]
    assert (member["InstanceId"], member["HealthStatus"]) == (instance, "Unhealthy")
    assert (member["LifecycleState"], state(client, instance)) == ("InService", "running")


def test_health_of_what_no_group_holds_is_refused(client: Client) -> None:
    with pytest.raises(ClientError, match="ValidationError"):
        mark_unhealthy(client, "", "i-00000000000000000")


def test_a_launching_hook_holds_a_new_instance(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name, "enter", LifecycleTransition=LAUNCHING)
    (instance,) = launch(client, name)
    assert members(client, name) == {instance: "Pending:Wait"}
    assert truth(aws, instance).lifecycle_state == "InService"
    complete(client, name, instance, hook="enter")
    assert members(client, name) == {instance: "InService"}


def test_an_abandoned_launch_is_replaced(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name, "enter", LifecycleTransition=LAUNCHING, DefaultResult="ABANDON")
    (instance,) = launch(client, name)
    aws.advance(HEARTBEAT + 1)
    assert state(client, instance) == "terminated"
    (other,) = members(client, name).items()
    assert other[0] != instance
    assert other[1] == "Pending:Wait"
