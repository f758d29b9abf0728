"""Spot Instances: price and interruption."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.aws.control_models import InstanceTruth
from rehearsal.aws.faults import SpotInterruption
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.metadata import Metadata
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import launch, refused, terminate_all


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws, client: Client) -> Iterator[None]:
    """Faults and instances of one test are none of the next one's."""
    yield
    aws.clear_faults()
    terminate_all(aws, client)


def spot(**options: str) -> dict[str, Any]:
    return {"InstanceMarketOptions": {"MarketType": "spot", **({"SpotOptions": options} if options else {})}}


def truth(aws: EmulatedAws, name: str) -> InstanceTruth:
    return next(one for one in aws.instances() if one.id == name)


def test_a_maximum_below_the_price_is_refused(client: Client, network: Network) -> None:
    history = client("ec2").describe_spot_price_history(InstanceTypes=["t3.medium"])["SpotPriceHistory"]
    (price,) = {float(each["SpotPrice"]) for each in history}
    assert refused(lambda: launch(client, network, **spot(MaxPrice=f"{price * 0.9:.5f}"))) == "SpotMaxPriceTooLow"
    assert launch(client, network, **spot(MaxPrice=f"{price:.5f}"))
    assert launch(client, network, **spot())


def test_to_stop_in_place_of_ending_needs_a_persistent_request(client: Client, network: Network) -> None:
    options = spot(InstanceInterruptionBehavior="stop")
    assert refused(lambda: launch(client, network, **options)) == "InvalidParameterCombination"


def test_an_interrupted_instance_has_its_notice_two_minutes_before_it_is_gone(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    (on_demand,), (made,) = launch(client, network), launch(client, network, **spot())
    aws.inject(SpotInterruption(seconds=600))
    assert truth(aws, made).interrupted_time is None
    aws.advance(601)
    notice = truth(aws, made)
    assert notice.state == "running"
    assert notice.interrupted_time == pytest.approx(aws.now() + 120, abs=10)
    aws.advance(125)
    assert truth(aws, made).state == "terminated"
    found = client("ec2").describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]
    assert found["StateTransitionReason"].startswith("Server.SpotInstanceTermination")
    assert truth(aws, on_demand).state == "running"


def test_a_fault_interrupts_as_many_as_it_says(client: Client, network: Network, aws: EmulatedAws) -> None:
    made = launch(client, network, 3, **spot())
    aws.inject(SpotInterruption(seconds=0, count=2))
    assert sorted(truth(aws, each).interrupted_time is None for each in made) == [False, False, True]


def test_the_metadata_service_tells_of_the_notice(aws: EmulatedAws, client: Client, network: Network) -> None:
    (made,) = launch(client, network, **spot())

    def page(path: str) -> str | None:
        return Metadata(lambda: truth(aws, made).model_dump(), lambda role: {}).page(path)

    assert page("/meta-data/spot/instance-action") is None
    aws.inject(SpotInterruption(seconds=0))
    assert '"action": "terminate"' in (page("/meta-data/spot/instance-action") or "")
    assert (page("/meta-data/spot/termination-time") or "none") in (page("/meta-data/spot/instance-action") or "")


def test_a_group_makes_an_interrupted_member_good(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group(spot())
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)

    def members() -> list[str]:
        found = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return [each["InstanceId"] for each in found["AutoScalingGroups"][0]["Instances"]]

    (first,) = members()
    aws.inject(SpotInterruption(seconds=0))
    assert members() == [first]
    aws.advance(121)
    (second,) = members()
    assert second != first
