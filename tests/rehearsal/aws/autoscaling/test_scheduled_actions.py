"""Scheduled actions and the account's clock, which can be advanced."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.autoscaling.test_lifecycle import HEARTBEAT, launch, members, put_hook, state
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.instances import instance_record


def put_lease(client: Client, aws: EmulatedAws, group: str, seconds: float, **overrides: Any) -> float:
    """Create a scheduled action and return its Unix time."""
    start = datetime.fromtimestamp(int(aws.now() + seconds), UTC)
    whole = {"MinSize": 0, "DesiredCapacity": 0, **overrides}
    client("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName=group, ScheduledActionName="lease", StartTime=start, **whole
    )
    return start.timestamp()


def actions(client: Client, group: str) -> list[dict[str, Any]]:
    described = client("autoscaling").describe_scheduled_actions(AutoScalingGroupName=group)
    return list(described["ScheduledUpdateGroupActions"])


def test_clock_is_the_machine_clock_until_advanced(aws: EmulatedAws) -> None:
    before = aws.now() - time.time()
    assert aws.advance_clock(1000) - time.time() == pytest.approx(before + 1000, abs=5)
    assert aws.now() - time.time() == pytest.approx(before + 1000, abs=5)


@pytest.mark.parametrize("seconds", [0, -1])
def test_clock_cannot_be_moved_backward(aws: EmulatedAws, seconds: float) -> None:
    with pytest.raises(ValueError, match="advance_seconds"):
        aws.advance_clock(seconds)


def test_scheduled_action_runs_when_due(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 1200)
    aws.advance_clock(1100)
    assert (state(client, instance), len(actions(client, name))) == ("running", 1)
    aws.advance_clock(101)
    assert (state(client, instance), actions(client, name)) == ("terminated", [])


def test_scheduled_action_runs_without_advancing_the_clock(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 2)
    deadline = time.monotonic() + 15
    while state(client, instance) == "running":
        assert time.monotonic() < deadline, "the scheduled action did not run"
        time.sleep(0.1)


def test_rescheduled_action_does_not_run_at_the_old_time(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 600)
    aws.advance_clock(500)
    put_lease(client, aws, name, 600)
    aws.advance_clock(400)
    assert state(client, instance) == "running"
    aws.advance_clock(201)
    assert state(client, instance) == "terminated"


def test_scheduled_action_sets_limits_and_launches(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group(MaxSize=1)
    put_lease(client, aws, name, 60, MinSize=1, MaxSize=3, DesiredCapacity=2)
    aws.advance_clock(61)
    (described,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    assert (described["MinSize"], described["MaxSize"], described["DesiredCapacity"]) == (1, 3, 2)
    assert list(members(client, name).values()) == ["InService"] * 2


def test_scheduled_action_outside_the_limits_has_no_effect(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group(MaxSize=1)
    put_lease(client, aws, name, 60, DesiredCapacity=2)
    aws.advance_clock(61)
    assert (actions(client, name), members(client, name)) == ([], {})


def test_start_time_in_the_past_is_refused(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    aws.advance_clock(7200)
    with pytest.raises(ClientError, match="in the past"):
        put_lease(client, aws, name, -3600)  # on the machine's clock it is an hour ahead


def test_recurrence_is_not_supported(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="a scheduled action with Recurrence"):
        client("autoscaling").put_scheduled_update_group_action(
            AutoScalingGroupName=group(), ScheduledActionName="nightly", Recurrence="0 0 * * *", DesiredCapacity=0
        )


def test_scheduled_action_runs_termination_hooks(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 600)
    aws.advance_clock(601)
    assert members(client, name) == {instance: "Terminating:Wait"}


def test_due_actions_run_at_their_due_time(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    due = put_lease(client, aws, name, 600)
    aws.advance_clock(86400)
    described = instance_record(aws, instance)
    assert described.terminated_time == pytest.approx(due + HEARTBEAT, abs=0.001)
    assert due - described.launch_time == pytest.approx(600, abs=5)


def test_suspended_actions_do_not_run(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    client("autoscaling").suspend_processes(AutoScalingGroupName=name, ScalingProcesses=["ScheduledActions"])
    put_lease(client, aws, name, 60)
    aws.advance_clock(61)
    assert (actions(client, name), state(client, instance)) == ([], "running")


def test_launch_time_is_by_the_account_clock(client: Client, group: Callable[..., str], aws: EmulatedAws) -> None:
    aws.advance_clock(3600)
    (instance,) = launch(client, group())
    (described,) = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    assert described["Instances"][0]["LaunchTime"].timestamp() == pytest.approx(aws.now(), abs=10)
