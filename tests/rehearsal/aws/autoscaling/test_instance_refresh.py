"""Instance refreshes replace the instances of a group."""

from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.autoscaling.test_activities import members, set_capacity
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.ec2.test_reservations import refused


def refresh(client: Client, name: str, **preferences: Any) -> str:
    response = client("autoscaling").start_instance_refresh(
        AutoScalingGroupName=name, Strategy="Rolling", Preferences={"MinHealthyPercentage": 0, **preferences}
    )
    return str(response["InstanceRefreshId"])


def cancel(client: Client, name: str) -> str:
    return str(client("autoscaling").cancel_instance_refresh(AutoScalingGroupName=name)["InstanceRefreshId"])


def test_refresh_replaces_every_instance(client: Client, group: Callable[..., str]) -> None:
    name = group()
    set_capacity(client, name, 2)
    earlier = members(client, name)
    refresh(client, name)
    assert len(members(client, name)) == 2
    assert not set(members(client, name)) & set(earlier)


def test_another_refresh_is_refused_until_the_first_is_cancelled(
    aws: EmulatedAws, client: Client, group: Callable[..., str]
) -> None:
    name = group()
    set_capacity(client, name, 1)
    aws.set_timing(Timing(pending_seconds=60.0))
    try:
        first = refresh(client, name)
        assert refused(lambda: refresh(client, name)) == "InstanceRefreshInProgress"
        assert cancel(client, name) == first
        assert refresh(client, name) != first
    finally:
        aws.set_timing(Timing())
        aws.advance_clock(60.0)
    assert refused(lambda: cancel(client, name)) == "ActiveInstanceRefreshNotFound"


@pytest.mark.parametrize("preferences", [{"MinHealthyPercentage": 90}, {"SkipMatching": True}])
def test_unsupported_refresh_is_refused(client: Client, group: Callable[..., str], preferences: dict[str, Any]) -> None:
    name = group()
    assert refused(lambda: refresh(client, name, **preferences)) == "NotImplemented"
