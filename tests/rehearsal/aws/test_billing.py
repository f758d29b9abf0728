"""Instance-seconds as AWS bills them."""

from collections.abc import Callable

import pytest

from rehearsal.aws.billing import billed_by_type, billed_seconds
from rehearsal.aws.control_models import InstanceRecord
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.autoscaling.test_lifecycle import launch
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.instances import example_record, instance_record

NOW = 10_000.0


def ran(launched: float, terminated: float | None) -> InstanceRecord:
    state = "running" if terminated is None else "terminated"
    return example_record(instance_type="p4d.24xlarge", state=state, launch_time=launched, terminated_time=terminated)


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
def test_billing_is_from_launch_to_termination_with_a_minimum_of_a_minute(
    instances: list[InstanceRecord], seconds: float
) -> None:
    assert billed_seconds(instances, NOW) == seconds


def test_billing_is_grouped_by_instance_type_zone_and_purchase_option() -> None:
    small = ran(1000, 1600).model_copy(update={"instance_type": "t3.medium", "zone": "us-east-1b"})
    spot = small.model_copy(update={"purchase_option": "spot"})
    billed = billed_by_type([small, spot, ran(1000, 1600), ran(1000, 1010)], NOW)
    assert [tuple(entry.model_dump().values()) for entry in billed] == [
        ("p4d.24xlarge", "us-east-1a", "on-demand", 2, 660.0),
        ("t3.medium", "us-east-1b", "on-demand", 1, 600.0),
        ("t3.medium", "us-east-1b", "spot", 1, 600.0),
    ]


def test_terminated_instance_is_not_billed_further(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    (instance,) = launch(client, name)
    aws.advance_clock(600)
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    aws.advance_clock(3600)
    assert billed_seconds([instance_record(aws, instance)], aws.now()) == pytest.approx(600, abs=10)


def test_account_reports_billed_instance_seconds(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    before = aws.billed_instance_seconds()
    launch(client, group(), 2)
    running = sum(each.terminated_time is None for each in aws.instances()) - 2
    aws.advance_clock(1000)
    assert aws.billed_instance_seconds() - before == pytest.approx(1000 * (running + 2), rel=0.05)
