"""Spot Instances: price and interruption."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.aws.faults import SpotInterruption
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.metadata import InstanceMetadata
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import launch, refused, terminate_all
from tests.rehearsal.aws.instances import instance_record


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws, client: Client) -> Iterator[None]:
    """Remove faults and instances after each test."""
    yield
    aws.clear_faults()
    terminate_all(aws, client)


def spot(**options: str) -> dict[str, Any]:
    return {"InstanceMarketOptions": {"MarketType": "spot", **({"SpotOptions": options} if options else {})}}


def test_maximum_below_the_spot_price_is_refused(client: Client, network: Network) -> None:
    history = client("ec2").describe_spot_price_history(InstanceTypes=["t3.medium"])["SpotPriceHistory"]
    (price,) = {float(entry["SpotPrice"]) for entry in history}
    assert refused(lambda: launch(client, network, **spot(MaxPrice=f"{price * 0.9:.5f}"))) == "SpotMaxPriceTooLow"
    assert launch(client, network, **spot(MaxPrice=f"{price:.5f}"))
    assert launch(client, network, **spot())


def test_interruption_behavior_stop_requires_a_persistent_request(client: Client, network: Network) -> None:
    options = spot(InstanceInterruptionBehavior="stop")
    assert refused(lambda: launch(client, network, **options)) == "InvalidParameterCombination"


def test_interruption_notice_precedes_termination_by_two_minutes(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    (on_demand,), (instance_id,) = launch(client, network), launch(client, network, **spot())
    aws.inject(SpotInterruption(seconds=600))
    assert instance_record(aws, instance_id).interrupted_time is None
    aws.advance_clock(601)
    notice = instance_record(aws, instance_id)
    assert notice.state == "running"
    assert notice.interrupted_time == pytest.approx(aws.now() + 120, abs=10)
    aws.advance_clock(125)
    assert instance_record(aws, instance_id).state == "terminated"
    described = client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    assert described["StateTransitionReason"].startswith("Server.SpotInstanceTermination")
    assert instance_record(aws, on_demand).state == "running"


def test_fault_interrupts_the_specified_count(client: Client, network: Network, aws: EmulatedAws) -> None:
    instance_id = launch(client, network, 3, **spot())
    aws.inject(SpotInterruption(seconds=0, count=2))
    assert sorted(instance_record(aws, entry).interrupted_time is None for entry in instance_id) == [False, False, True]


def test_metadata_service_reports_the_notice(aws: EmulatedAws, client: Client, network: Network) -> None:
    (instance_id,) = launch(client, network, **spot())

    def page(path: str) -> str | None:
        return InstanceMetadata(lambda: instance_record(aws, instance_id).model_dump(), lambda role: {}).page(path)

    assert page("/meta-data/spot/instance-action") is None
    aws.inject(SpotInterruption(seconds=0))
    assert '"action": "terminate"' in (page("/meta-data/spot/instance-action") or "")
    assert (page("/meta-data/spot/termination-time") or "none") in (page("/meta-data/spot/instance-action") or "")


def test_group_replaces_an_interrupted_instance(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group(spot())
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)

    def members() -> list[str]:
        described = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return [entry["InstanceId"] for entry in described["AutoScalingGroups"][0]["Instances"]]

    (first,) = members()
    aws.inject(SpotInterruption(seconds=0))
    assert members() == [first]
    aws.advance_clock(121)
    (second,) = members()
    assert second != first
