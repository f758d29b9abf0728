"""Scheduled actions and the account's clock, which can jump."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.test_lifecycle import HEARTBEAT, launch, members, put_hook, state, truth


def put_lease(client: Client, aws: EmulatedAws, group: str, seconds: float, **given: Any) -> float:
    """Put an action; returns its Unix time."""
    start = datetime.fromtimestamp(int(aws.now() + seconds), UTC)
    whole = {"MinSize": 0, "DesiredCapacity": 0, **given}
    client("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName=group, ScheduledActionName="lease", StartTime=start, **whole
    )
    return start.timestamp()


def actions(client: Client, group: str) -> list[dict[str, Any]]:
    found = client("autoscaling").describe_scheduled_actions(AutoScalingGroupName=group)
    return list(found["ScheduledUpdateGroupActions"])


def test_the_clock_is_the_machine_s_until_it_jumps(aws: EmulatedAws) -> None:
    before = aws.now() - time.time()
    assert aws.advance(1000) - time.time() == pytest.approx(before + 1000, abs=5)
    assert aws.now() - time.time() == pytest.approx(before + 1000, abs=5)


@pytest.mark.parametrize("seconds", [0, -1])
def test_the_clock_does_not_go_back(aws: EmulatedAws, seconds: float) -> None:
    with pytest.raises(ValueError, match="advance_seconds"):
        aws.advance(seconds)


def test_an_action_runs_when_it_is_due(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 1200)
    aws.advance(1100)
    assert (state(client, instance), len(actions(client, name))) == ("running", 1)
    aws.advance(101)
    assert (state(client, instance), actions(client, name)) == ("terminated", [])


def test_an_action_runs_without_a_jump_as_well(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 2)
    deadline = time.monotonic() + 15
    while state(client, instance) == "running":
        assert time.monotonic() < deadline, "the scheduled action did not run"
        time.sleep(0.1)


def test_an_action_moved_forward_does_not_run_at_its_old_time(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 600)
    aws.advance(500)
    put_lease(client, aws, name, 600)
    aws.advance(400)
    assert state(client, instance) == "running"
    aws.advance(201)
    assert state(client, instance) == "terminated"


def test_an_action_sets_limits_and_launches(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group(MaxSize=1)
    put_lease(client, aws, name, 60, MinSize=1, MaxSize=3, DesiredCapacity=2)
    aws.advance(61)
    (found,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    assert (found["MinSize"], found["MaxSize"], found["DesiredCapacity"]) == (1, 3, 2)
    assert list(members(client, name).values()) == ["InService"] * 2


def test_an_action_beyond_the_limits_changes_nothing(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group(MaxSize=1)
    put_lease(client, aws, name, 60, DesiredCapacity=2)
    aws.advance(61)
    assert (actions(client, name), members(client, name)) == ([], {})


def test_a_time_in_the_past_is_refused_by_the_account_s_clock(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    aws.advance(7200)
    with pytest.raises(ClientError, match="in the past"):
        put_lease(client, aws, name, -3600)  # on the machine's clock it is an hour ahead


def test_a_recurrence_is_refused_by_name(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="a scheduled action with Recurrence"):
        client("autoscaling").put_scheduled_update_group_action(
            AutoScalingGroupName=group(), ScheduledActionName="nightly", Recurrence="0 0 * * *", DesiredCapacity=0
        )


def test_an_action_takes_the_termination_hook(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    put_lease(client, aws, name, 600)
    aws.advance(601)
    assert members(client, name) == {instance: "Terminating:Wait"}


def test_what_fell_due_in_a_jump_happened_at_its_own_time(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    put_hook(client, name)
    (instance,) = launch(client, name)
    due = put_lease(client, aws, name, 600)
    aws.advance(86400)
    found = truth(aws, instance)
    assert found.terminated_time == pytest.approx(due + HEARTBEAT, abs=0.001)
    assert due - found.launch_time == pytest.approx(600, abs=5)


def test_suspended_actions_do_not_run(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    client("autoscaling").suspend_processes(AutoScalingGroupName=name, ScalingProcesses=["ScheduledActions"])
    put_lease(client, aws, name, 60)
    aws.advance(61)
    assert (actions(client, name), state(client, instance)) == ([], "running")


def test_an_instance_is_launched_by_the_account_s_clock(
    client: Client, group: Callable[..., str], aws: EmulatedAws
) -> None:
    aws.advance(3600)
    (instance,) = launch(client, group())
    (found,) = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    assert found["Instances"][0]["LaunchTime"].timestamp() == pytest.approx(aws.now(), abs=10)
