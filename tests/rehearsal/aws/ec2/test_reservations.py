"""Capacity reservations and Capacity Blocks: what they hold, who may launch into them, and how they end."""

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import Given, GivenReservation
from tests.rehearsal.aws.conftest import Client, Network

_numbers = itertools.count(1)
HOUR = 3600.0


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws, client: Client) -> Iterator[None]:
    """Open reservations take the launches of others."""
    yield
    aws.clear_faults()
    for held in client("ec2").describe_capacity_reservations()["CapacityReservations"]:
        if held["State"] == "active" and held["ReservationType"] == "default":
            client("ec2").cancel_capacity_reservation(CapacityReservationId=held["CapacityReservationId"])


def reserve(client: Client, count: int, **given: Any) -> str:
    asked = {
        "InstanceType": "t3.medium",
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": "us-east-1a",
        "InstanceCount": count,
        **given,
    }
    return str(client("ec2").create_capacity_reservation(**asked)["CapacityReservation"]["CapacityReservationId"])


def block(aws: EmulatedAws, count: int = 2, begins: float = -HOUR, ends: float = 24 * HOUR) -> str:
    """A Capacity Block that begins and ends so many seconds from now."""
    name, now = f"cr-{next(_numbers):017x}", aws.now()
    held = GivenReservation(
        id=name,
        instance_type="p4d.24xlarge",
        zone="us-east-1a",
        count=count,
        block=True,
        start=now + begins,
        end=now + ends,
    )
    aws.give(Given(region="us-east-1", reservations=(held,)))
    return name


def described(client: Client, name: str) -> dict[str, Any]:
    return dict(client("ec2").describe_capacity_reservations(CapacityReservationIds=[name])["CapacityReservations"][0])


def launch(client: Client, network: Network, count: int = 1, least: int | None = None, **given: Any) -> list[str]:
    asked = {"ImageId": network.image, "InstanceType": "t3.medium", "SubnetId": network.subnet, **given}
    made = client("ec2").run_instances(MinCount=least or count, MaxCount=count, **asked)["Instances"]
    return [each["InstanceId"] for each in made]


def targeting(name: str) -> dict[str, Any]:
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": name}}}


def in_block(name: str) -> dict[str, Any]:
    market = {"InstanceMarketOptions": {"MarketType": "capacity-block"}, "InstanceType": "p4d.24xlarge"}
    return {**targeting(name), **market}


def held_by(client: Client, ids: list[str]) -> list[str | None]:
    found = client("ec2").describe_instances(InstanceIds=ids)["Reservations"]
    return [each.get("CapacityReservationId") for one in found for each in one["Instances"]]


def terminate_all(aws: EmulatedAws, client: Client) -> None:
    running = [one.id for one in aws.instances() if one.state == "running"]
    if running:
        client("ec2").terminate_instances(InstanceIds=running)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


def test_a_reservation_is_told_as_it_was_made(client: Client, aws: EmulatedAws) -> None:
    end = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(hours=5)
    found = described(client, reserve(client, 3, InstanceMatchCriteria="targeted", EndDate=end, EndDateType="limited"))
    assert (found["InstanceType"], found["AvailabilityZone"], found["State"]) == ("t3.medium", "us-east-1a", "active")
    assert (found["TotalInstanceCount"], found["AvailableInstanceCount"]) == (3, 3)
    assert (found["InstanceMatchCriteria"], found["EndDate"], found["ReservationType"]) == ("targeted", end, "default")


def test_the_free_count_goes_down_with_launches_and_up_with_terminations(client: Client, network: Network) -> None:
    name = reserve(client, 2, InstanceMatchCriteria="targeted")
    ids = launch(client, network, 2, **targeting(name))
    assert held_by(client, ids) == [name, name]
    assert described(client, name)["AvailableInstanceCount"] == 0
    client("ec2").terminate_instances(InstanceIds=ids[:1])
    assert described(client, name)["AvailableInstanceCount"] == 1


def test_more_than_a_reservation_holds_is_refused_and_nothing_launched(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    name, before = reserve(client, 1, InstanceMatchCriteria="targeted"), len(aws.instances())
    assert refused(lambda: launch(client, network, 2, **targeting(name))) == "ReservationCapacityExceeded"
    assert len(aws.instances()) == before
    assert len(launch(client, network, 2, least=1, **targeting(name))) == 1


@pytest.mark.parametrize("given", [{"InstanceType": "t3.large"}, {"AvailabilityZone": "us-east-1b"}])
def test_a_reservation_of_another_type_or_zone_is_refused(
    client: Client, network: Network, given: dict[str, Any]
) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted", **given)
    assert refused(lambda: launch(client, network, **targeting(name))) == "ReservationCapacityExceeded"


def test_a_reservation_that_is_not_there_is_refused(client: Client, network: Network) -> None:
    missing = "cr-0aaaaaaaaaaaaaaaa"
    code = "InvalidCapacityReservationId.NotFound"
    assert refused(lambda: launch(client, network, **targeting(missing))) == code
    assert refused(lambda: described(client, missing)) == code


def test_a_cancelled_reservation_takes_no_launch_and_is_held_no_more(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted")
    assert [one.kind for one in aws.dump() if one.id == name] == ["capacity-reservation"]
    (running,) = launch(client, network, **targeting(name))
    client("ec2").cancel_capacity_reservation(CapacityReservationId=name)
    assert described(client, name)["State"] == "cancelled"
    assert held_by(client, [running]) == [None]
    assert refused(lambda: launch(client, network, **targeting(name))) == "ReservationCapacityExceeded"
    assert name not in [one.id for one in aws.dump()]


def test_a_reservation_expires_at_its_end(client: Client, network: Network, aws: EmulatedAws) -> None:
    end = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(hours=1)
    name = reserve(client, 1, InstanceMatchCriteria="targeted", EndDate=end, EndDateType="limited")
    (running,) = launch(client, network, **targeting(name))
    aws.advance(HOUR + 1)
    assert described(client, name)["State"] == "expired"
    states = client("ec2").describe_instances(InstanceIds=[running])["Reservations"][0]["Instances"][0]["State"]
    assert states["Name"] == "running"  # what ran in it runs on, On-Demand


def test_an_open_reservation_takes_matching_launches_and_no_others(client: Client, network: Network) -> None:
    name = reserve(client, 1)
    assert sorted(held_by(client, launch(client, network, 2)), key=str) == [None, name]
    other = reserve(client, 1)
    none: dict[str, Any] = {"CapacityReservationSpecification": {"CapacityReservationPreference": "none"}}
    assert held_by(client, launch(client, network, **none)) == [None]
    assert held_by(client, launch(client, network, InstanceType="t3.large")) == [None]
    assert described(client, other)["AvailableInstanceCount"] == 1


def test_what_is_reserved_is_there_though_capacity_runs_out(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted")
    aws.inject(Capacity(limit=0))
    assert refused(lambda: launch(client, network)) == "InsufficientInstanceCapacity"
    assert held_by(client, launch(client, network, **targeting(name))) == [name]


def test_what_is_reserved_takes_none_of_the_capacity_that_is_left(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted")
    terminate_all(aws, client)
    aws.inject(Capacity(limit=1))
    launch(client, network, **targeting(name))
    assert held_by(client, launch(client, network)) == [None]
    assert refused(lambda: launch(client, network)) == "InsufficientInstanceCapacity"


def test_only_reserved_capacity_is_taken_where_that_is_asked(client: Client, network: Network) -> None:
    only: dict[str, Any] = {
        "CapacityReservationSpecification": {"CapacityReservationPreference": "capacity-reservations-only"}
    }
    assert refused(lambda: launch(client, network, **only)) == "ReservationCapacityExceeded"
    name = reserve(client, 1)
    assert held_by(client, launch(client, network, **only)) == [name]


def test_instances_in_a_block_say_so(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = block(aws)
    (made,) = launch(client, network, **in_block(name))
    found = client("ec2").describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]
    assert (found["InstanceLifecycle"], found["CapacityReservationId"]) == ("capacity-block", name)
    assert described(client, name)["AvailableInstanceCount"] == 1


def test_a_placement_group_beside_a_block_is_not_refused(
    client: Client, network: Network, aws: EmulatedAws, name: str
) -> None:
    client("ec2").create_placement_group(GroupName=name, Strategy="cluster")
    assert launch(client, network, Placement={"GroupName": name}, **in_block(block(aws)))


COMBINATIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "a block without a target": lambda block: {"InstanceMarketOptions": {"MarketType": "capacity-block"}},
    "a block as an On-Demand reservation": lambda block: {**targeting(block), "InstanceType": "p4d.24xlarge"},
    "spot in a reservation": lambda block: {**targeting(block), "InstanceMarketOptions": {"MarketType": "spot"}},
    "a preference beside a target": lambda block: {
        "CapacityReservationSpecification": {
            "CapacityReservationPreference": "open",
            "CapacityReservationTarget": {"CapacityReservationId": block},
        }
    },
    "spot options without spot": lambda block: {
        **targeting(block),
        "InstanceMarketOptions": {"MarketType": "capacity-block", "SpotOptions": {"MaxPrice": "1"}},
    },
}


@pytest.mark.parametrize("case", COMBINATIONS)
def test_a_combination_that_no_account_launches_is_refused(
    client: Client, network: Network, aws: EmulatedAws, case: str
) -> None:
    asked = COMBINATIONS[case](block(aws))
    assert refused(lambda: launch(client, network, **asked)) == "InvalidParameterCombination"


def test_a_block_that_has_not_begun_takes_no_launch(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = block(aws, begins=HOUR)
    assert described(client, name)["State"] == "scheduled"
    assert refused(lambda: launch(client, network, **in_block(name))) == "ReservationCapacityExceeded"
    aws.advance(HOUR + 1)
    assert described(client, name)["State"] == "active"
    assert launch(client, network, **in_block(name))


def test_ec2_ends_the_instances_of_a_block_30_minutes_before_its_end(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    name = block(aws, ends=2 * HOUR)
    (made,) = launch(client, network, **in_block(name))

    def state() -> str:
        return next(one.state for one in aws.instances() if one.id == made)

    aws.advance(1.5 * HOUR - 60)
    assert state() == "running"
    aws.advance(120)
    assert state() == "terminated"
    assert described(client, name)["State"] == "active"
    assert refused(lambda: launch(client, network, **in_block(name))) == "ReservationCapacityExceeded"
    aws.advance(HOUR)
    assert described(client, name)["State"] == "expired"


def test_a_block_can_not_be_cancelled(client: Client, aws: EmulatedAws) -> None:
    name = block(aws)
    assert refused(lambda: client("ec2").cancel_capacity_reservation(CapacityReservationId=name)) == (
        "OperationNotPermitted"
    )
    assert described(client, name)["State"] == "active"


def test_a_block_that_is_offered_can_be_bought(client: Client, aws: EmulatedAws) -> None:
    ec2 = client("ec2")
    asked = {"InstanceType": "p5.48xlarge", "InstanceCount": 4, "CapacityDurationHours": 48}
    offer = ec2.describe_capacity_block_offerings(**asked)["CapacityBlockOfferings"][0]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    found = described(client, bought["CapacityReservationId"])
    assert (found["ReservationType"], found["State"], found["TotalInstanceCount"]) == ("capacity-block", "scheduled", 4)
    assert (found["StartDate"].hour, found["StartDate"].minute) == (11, 30)
    assert found["EndDate"] - found["StartDate"] == timedelta(hours=48)


def test_a_group_launches_into_a_block_by_its_desired_capacity(
    client: Client, network: Network, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = block(aws)
    group_name = group(in_block(name))
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=group_name, DesiredCapacity=2)
    assert described(client, name)["AvailableInstanceCount"] == 0
    with pytest.raises(ClientError, match="NotImplemented"):
        client("autoscaling").launch_instances(AutoScalingGroupName=group_name, RequestedCapacity=1, ClientToken="t")


def test_cloud_control_tells_of_a_reservation(client: Client, aws: EmulatedAws) -> None:
    name, kind = block(aws), "AWS::EC2::CapacityReservation"
    found = client("cloudcontrol").get_resource(TypeName=kind, Identifier=name)
    assert (found["TypeName"], found["ResourceDescription"]["Identifier"]) == (kind, name)
    told, seen = json.loads(found["ResourceDescription"]["Properties"]), described(client, name)
    for key in ("InstanceType", "AvailabilityZone", "State", "ReservationType", "AvailableInstanceCount"):
        assert told[key] == seen[key]
    assert datetime.fromisoformat(told["EndDate"]) == seen["EndDate"]
    missing = refused(lambda: client("cloudcontrol").get_resource(TypeName=kind, Identifier="cr-0bbbbbbbbbbbbbbbb"))
    assert missing == "ResourceNotFoundException"
