"""Instance-seconds as AWS bills them."""

from collections.abc import Callable

import pytest

from rehearsal.aws.billing import billed_by_type, billed_seconds
from rehearsal.aws.control_models import InstanceTruth
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.autoscaling.test_lifecycle import launch, truth
from tests.rehearsal.aws.conftest import Client

NOW = 10_000.0


def ran(launched: float, terminated: float | None) -> InstanceTruth:
    return InstanceTruth(
        id="i-1",
        region="us-east-1",
        state="running" if terminated is None else "terminated",
        private_ip="10.0.0.4",
        instance_type="p4d.24xlarge",
        subnet="subnet-1",
        zone="us-east-1a",
        image="ami-1",
        user_data="",
        role_name=None,
        tags={},
        launch_time=launched,
        terminated_time=terminated,
        autoscaling_group=None,
        lifecycle_state="InService",
    )


@pytest.mark.parametrize(
    ("instances", "seconds"),
    [
        ([], 0.0),
        ([ran(1000, 1600)], 600.0),
        ([ran(NOW - 90, None)], 90.0),
        ([ran(1000, 1001)], 60.0),
        ([ran(NOW, None)], 60.0),
        ([ran(1000, 1600), ran(1000, 1010), ran(NOW - 90, None)], 750.0),
    ],
)
def test_seconds_are_billed_from_launch_to_termination_and_a_minute_at_least(
    instances: list[InstanceTruth], seconds: float
) -> None:
    assert billed_seconds(instances, NOW) == seconds


def test_the_bill_is_told_by_instance_type() -> None:
    small = ran(1000, 1600).model_copy(update={"instance_type": "t3.medium"})
    told = [one.model_dump() for one in billed_by_type([small, ran(1000, 1600), ran(1000, 1010)], NOW)]
    assert told == [
        {"type": "p4d.24xlarge", "instances": 2, "seconds": 660.0},
        {"type": "t3.medium", "instances": 1, "seconds": 600.0},
    ]


def test_an_ended_instance_is_billed_no_further(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    aws.advance(600)
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    aws.advance(3600)
    assert billed_seconds([truth(aws, instance)], aws.now()) == pytest.approx(600, abs=10)


def test_the_account_tells_what_is_billed(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    before = aws.billed()
    launch(client, group(), 2)
    running = sum(each.terminated_time is None for each in aws.instances()) - 2
    aws.advance(1000)
    assert aws.billed() - before == pytest.approx(1000 * (running + 2), rel=0.05)
