"""Capacity reservations and Capacity Blocks: capacity, launches into them, and their end."""

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Capacity, PaymentFailure, ReservationFailure
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.conftest import Client, Network

_numbers = itertools.count(1)
HOUR = 3600.0


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws, client: Client) -> Iterator[None]:
    """Terminate instances of other tests, which use capacity; then cancel reservations, which other tests would use."""
    terminate_all(aws, client)
    yield
    aws.clear_faults()
    for reservation in client("ec2").describe_capacity_reservations()["CapacityReservations"]:
        is_own = reservation["ReservationType"] == "default" and not reservation.get("Interruptible")
        if reservation["State"] == "active" and is_own:
            client("ec2").cancel_capacity_reservation(CapacityReservationId=reservation["CapacityReservationId"])


def reserve(client: Client, count: int, **overrides: Any) -> str:
    parameters = {
        "InstanceType": "t3.medium",
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": "us-east-1a",
        "InstanceCount": count,
        **overrides,
    }
    return str(client("ec2").create_capacity_reservation(**parameters)["CapacityReservation"]["CapacityReservationId"])


def block(aws: EmulatedAws, count: int = 2, starts_in: float = -HOUR, ends_in: float = 24 * HOUR) -> str:
    """Create a Capacity Block that starts and ends the specified number of seconds from now."""
    name, now = f"cr-{next(_numbers):017x}", aws.now()
    reservation = SeedReservation(
        id=name,
        instance_type="p4d.24xlarge",
        zone="us-east-1a",
        count=count,
        block=True,
        start=now + starts_in,
        end=now + ends_in,
    )
    aws.seed(AccountSeed(region="us-east-1", reservations=(reservation,)))
    return name


def describe(client: Client, name: str) -> dict[str, Any]:
    return dict(client("ec2").describe_capacity_reservations(CapacityReservationIds=[name])["CapacityReservations"][0])


def launch(client: Client, network: Network, count: int = 1, minimum: int | None = None, **overrides: Any) -> list[str]:
    parameters = {"ImageId": network.image, "InstanceType": "t3.medium", "SubnetId": network.subnet, **overrides}
    instances = client("ec2").run_instances(MinCount=minimum or count, MaxCount=count, **parameters)["Instances"]
    return [instance["InstanceId"] for instance in instances]


def targeting(name: str) -> dict[str, Any]:
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": name}}}


def in_block(name: str) -> dict[str, Any]:
    market = {"InstanceMarketOptions": {"MarketType": "capacity-block"}, "InstanceType": "p4d.24xlarge"}
    return {**targeting(name), **market}


def reservations_of(client: Client, ids: list[str]) -> list[str | None]:
    described = client("ec2").describe_instances(InstanceIds=ids)["Reservations"]
    return [instance.get("CapacityReservationId") for record in described for instance in record["Instances"]]


def terminate_all(aws: EmulatedAws, client: Client) -> None:
    running = [record.id for record in aws.instances() if record.state == "running"]
    if running:
        client("ec2").terminate_instances(InstanceIds=running)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


def test_reservation_is_described_as_created(client: Client, aws: EmulatedAws) -> None:
    end = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(hours=5)
    described = describe(
        client, reserve(client, 3, InstanceMatchCriteria="targeted", EndDate=end, EndDateType="limited")
    )
    assert (described["InstanceType"], described["AvailabilityZone"], described["State"]) == (
        "t3.medium",
        "us-east-1a",
        "active",
    )
    assert (described["TotalInstanceCount"], described["AvailableInstanceCount"]) == (3, 3)
    assert (described["InstanceMatchCriteria"], described["EndDate"], described["ReservationType"]) == (
        "targeted",
        end,
        "default",
    )


def test_repeated_client_token_creates_one_reservation(client: Client) -> None:
    name = reserve(client, 1, ClientToken="repeated")
    assert reserve(client, 1, ClientToken="repeated") == name


def test_client_token_with_other_parameters_is_refused(client: Client, network: Network) -> None:
    reserve(client, 1, ClientToken="reservation")
    launch(client, network, ClientToken="instance")
    mismatch = "IdempotentParameterMismatch"
    assert refused(lambda: reserve(client, 2, ClientToken="reservation")) == mismatch
    assert refused(lambda: launch(client, network, 2, ClientToken="instance")) == mismatch


def test_available_count_follows_launches_and_terminations(client: Client, network: Network) -> None:
    name = reserve(client, 2, InstanceMatchCriteria="targeted")
    ids = launch(client, network, 2, **targeting(name))
    assert reservations_of(client, ids) == [name, name]
    assert describe(client, name)["AvailableInstanceCount"] == 0
    client("ec2").terminate_instances(InstanceIds=ids[:1])
    assert describe(client, name)["AvailableInstanceCount"] == 1


def test_launch_larger_than_the_reservation_is_refused(client: Client, network: Network, aws: EmulatedAws) -> None:
    name, before = reserve(client, 1, InstanceMatchCriteria="targeted"), len(aws.instances())
    assert refused(lambda: launch(client, network, 2, **targeting(name))) == "ReservationCapacityExceeded"
    assert len(aws.instances()) == before
    assert len(launch(client, network, 2, minimum=1, **targeting(name))) == 1


@pytest.mark.parametrize("overrides", [{"InstanceType": "t3.large"}, {"AvailabilityZone": "us-east-1b"}])
def test_reservation_of_another_type_or_zone_is_refused(
    client: Client, network: Network, overrides: dict[str, Any]
) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted", **overrides)
    assert refused(lambda: launch(client, network, **targeting(name))) == "ReservationCapacityExceeded"


def test_unknown_reservation_is_refused(client: Client, network: Network) -> None:
    missing = "cr-0aaaaaaaaaaaaaaaa"
    code = "InvalidCapacityReservationId.NotFound"
    assert refused(lambda: launch(client, network, **targeting(missing))) == code
    assert refused(lambda: describe(client, missing)) == code


def test_cancelled_reservation_accepts_no_launch(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted")
    assert [record.kind for record in aws.list_resources() if record.id == name] == ["capacity-reservation"]
    (running,) = launch(client, network, **targeting(name))
    client("ec2").cancel_capacity_reservation(CapacityReservationId=name)
    assert describe(client, name)["State"] == "cancelled"
    assert reservations_of(client, [running]) == [None]
    assert refused(lambda: launch(client, network, **targeting(name))) == "ReservationCapacityExceeded"
    assert name not in [record.id for record in aws.list_resources()]


def test_reservation_expires_at_the_end_date(client: Client, network: Network, aws: EmulatedAws) -> None:
    end = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(hours=1)
    name = reserve(client, 1, InstanceMatchCriteria="targeted", EndDate=end, EndDateType="limited")
    (running,) = launch(client, network, **targeting(name))
    aws.advance_clock(HOUR + 1)
    assert describe(client, name)["State"] == "expired"
    states = client("ec2").describe_instances(InstanceIds=[running])["Reservations"][0]["Instances"][0]["State"]
    assert states["Name"] == "running"  # its instances continue as On-Demand Instances


def test_instances_of_an_expired_reservation_use_the_capacity_of_the_zone(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    end = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(hours=1)
    name = reserve(client, 1, InstanceMatchCriteria="targeted", EndDate=end, EndDateType="limited")
    terminate_all(aws, client)
    launch(client, network, **targeting(name))
    aws.advance_clock(HOUR + 1)
    aws.inject(Capacity(limit=1))
    assert refused(lambda: launch(client, network)) == "InsufficientInstanceCapacity"


def test_open_reservation_accepts_only_matching_launches(client: Client, network: Network) -> None:
    name = reserve(client, 1)
    assert sorted(reservations_of(client, launch(client, network, 2)), key=str) == [None, name]
    other = reserve(client, 1)
    none: dict[str, Any] = {"CapacityReservationSpecification": {"CapacityReservationPreference": "none"}}
    assert reservations_of(client, launch(client, network, **none)) == [None]
    assert reservations_of(client, launch(client, network, InstanceType="t3.large")) == [None]
    assert describe(client, other)["AvailableInstanceCount"] == 1


def test_reserved_capacity_is_available_during_a_shortage(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted")
    aws.inject(Capacity(limit=0))
    assert refused(lambda: launch(client, network)) == "InsufficientInstanceCapacity"
    assert reservations_of(client, launch(client, network, **targeting(name))) == [name]


def test_reserved_instances_do_not_use_unreserved_capacity(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = reserve(client, 1, InstanceMatchCriteria="targeted")
    terminate_all(aws, client)
    aws.inject(Capacity(limit=2))
    launch(client, network, **targeting(name))
    assert reservations_of(client, launch(client, network)) == [None]
    assert refused(lambda: launch(client, network)) == "InsufficientInstanceCapacity"


def test_capacity_reservations_only_uses_reserved_capacity(client: Client, network: Network) -> None:
    only: dict[str, Any] = {
        "CapacityReservationSpecification": {"CapacityReservationPreference": "capacity-reservations-only"}
    }
    assert refused(lambda: launch(client, network, **only)) == "ReservationCapacityExceeded"
    name = reserve(client, 1)
    assert reservations_of(client, launch(client, network, **only)) == [name]


def test_instances_in_a_capacity_block_are_described_so(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = block(aws)
    (instance_id,) = launch(client, network, **in_block(name))
    described = client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    assert (described["InstanceLifecycle"], described["CapacityReservationId"]) == ("capacity-block", name)
    assert describe(client, name)["AvailableInstanceCount"] == 1


def test_placement_group_with_a_capacity_block_is_accepted(
    client: Client, network: Network, aws: EmulatedAws, name: str
) -> None:
    client("ec2").create_placement_group(GroupName=name, Strategy="cluster")
    assert launch(client, network, Placement={"GroupName": name}, **in_block(block(aws)))


COMBINATIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "a block without a target": lambda block: {"InstanceMarketOptions": {"MarketType": "capacity-block"}},
    "a block as an On-Demand reservation": lambda block: {**targeting(block), "InstanceType": "p4d.24xlarge"},
    "spot in a reservation": lambda block: {**targeting(block), "InstanceMarketOptions": {"MarketType": "spot"}},
    "a preference together with a target": lambda block: {
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
def test_invalid_combination_of_market_and_reservation_is_refused(
    client: Client, network: Network, aws: EmulatedAws, case: str
) -> None:
    parameters = COMBINATIONS[case](block(aws))
    assert refused(lambda: launch(client, network, **parameters)) == "InvalidParameterCombination"


def test_scheduled_block_accepts_no_launch(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = block(aws, starts_in=HOUR)
    assert describe(client, name)["State"] == "scheduled"
    code = "InvalidCapacityReservationState.PendingActivation"
    assert refused(lambda: launch(client, network, **in_block(name))) == code
    aws.advance_clock(HOUR + 1)
    assert describe(client, name)["State"] == "active"
    assert launch(client, network, **in_block(name))


def test_block_instances_terminate_30_minutes_before_the_end(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    name = block(aws, ends_in=2 * HOUR)
    (instance_id,) = launch(client, network, **in_block(name))

    def state() -> str:
        return next(record.state for record in aws.instances() if record.id == instance_id)

    aws.advance_clock(1.5 * HOUR - 60)
    assert state() == "running"
    aws.advance_clock(120)
    assert state() == "terminated"
    assert describe(client, name)["State"] == "active"
    assert refused(lambda: launch(client, network, **in_block(name))) == "ReservationCapacityExceeded"
    aws.advance_clock(HOUR)
    assert describe(client, name)["State"] == "expired"


def test_block_cannot_be_cancelled(client: Client, aws: EmulatedAws) -> None:
    name = block(aws)
    assert refused(lambda: client("ec2").cancel_capacity_reservation(CapacityReservationId=name)) == (
        "OperationNotPermitted"
    )
    assert describe(client, name)["State"] == "active"


def test_offered_block_can_be_purchased(client: Client, aws: EmulatedAws) -> None:
    ec2 = client("ec2")
    parameters = {"InstanceType": "p5.48xlarge", "InstanceCount": 4, "CapacityDurationHours": 48}
    offering = ec2.describe_capacity_block_offerings(**parameters)["CapacityBlockOfferings"][0]
    purchased = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offering["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    described = describe(client, purchased["CapacityReservationId"])
    assert (described["ReservationType"], described["State"], described["TotalInstanceCount"]) == (
        "capacity-block",
        "scheduled",
        4,
    )
    assert (described["StartDate"].hour, described["StartDate"].minute) == (11, 30)
    assert described["EndDate"] - described["StartDate"] == timedelta(hours=48)


def test_unknown_offering_is_refused(client: Client) -> None:
    def buy() -> None:
        client("ec2").purchase_capacity_block(CapacityBlockOfferingId="cbo-1", InstancePlatform="Linux/UNIX")

    assert refused(buy) == "InvalidCapacityBlockOfferingIdNotFound"


@pytest.fixture
def unpaid(client: Client, aws: EmulatedAws) -> Iterator[str]:
    """The reservation of a Capacity Block that was just bought. AWS processes its payment in ten minutes."""
    aws.set_timing(Timing(block_payment_seconds=600))
    ec2, parameters = client("ec2"), {"InstanceType": "p4d.24xlarge", "InstanceCount": 2, "CapacityDurationHours": 24}
    offering = ec2.describe_capacity_block_offerings(**parameters)["CapacityBlockOfferings"][0]
    purchased = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offering["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    assert purchased["State"] == "payment-pending"
    yield str(purchased["CapacityReservationId"])
    aws.set_timing(Timing())


def test_block_is_scheduled_once_it_is_paid(client: Client, network: Network, aws: EmulatedAws, unpaid: str) -> None:
    aws.advance_clock(590)
    assert describe(client, unpaid)["State"] == "payment-pending"
    code = "InvalidCapacityReservationState.PendingActivation"
    assert refused(lambda: launch(client, network, **in_block(unpaid))) == code
    aws.advance_clock(11)
    assert describe(client, unpaid)["State"] in ("scheduled", "active")  # it may start then


def test_unpaid_block_is_released(client: Client, network: Network, aws: EmulatedAws, unpaid: str) -> None:
    aws.inject(PaymentFailure())
    aws.advance_clock(601)
    aws.clear_faults()
    aws.advance_clock(2 * 24 * HOUR)
    assert (describe(client, unpaid)["State"], describe(client, unpaid)["AvailableInstanceCount"]) == (
        "payment-failed",
        0,
    )
    assert refused(lambda: launch(client, network, **in_block(unpaid))) == "ReservationCapacityExceeded"
    assert unpaid not in [record.id for record in aws.list_resources()]


def test_pending_reservation_can_fail(client: Client, aws: EmulatedAws) -> None:
    aws.set_timing(Timing(reservation_pending_seconds=60))
    aws.inject(ReservationFailure(zone="us-east-1a"))
    name = reserve(client, 1, AvailabilityZone="us-east-1a")
    aws.clear_faults()
    aws.set_timing(Timing())
    assert describe(client, name)["State"] == "pending"
    aws.advance_clock(60)
    assert describe(client, name)["State"] == "failed"
    assert name not in [record.id for record in aws.list_resources()]


def test_failed_reservation_is_not_billed_after_it_failed(client: Client, aws: EmulatedAws) -> None:
    aws.set_timing(Timing(reservation_pending_seconds=60))
    aws.inject(ReservationFailure(zone="us-east-1a"))
    name = reserve(client, 1, AvailabilityZone="us-east-1a")
    aws.clear_faults()
    aws.set_timing(Timing())
    aws.advance_clock(1000)
    (record,) = [record for record in aws.capacity_reservations() if record.id == name]
    assert record.unused_seconds == pytest.approx(60, abs=5)


def test_group_launches_into_a_block_by_desired_capacity(
    client: Client, network: Network, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = block(aws)
    group_name = group(in_block(name))
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=group_name, DesiredCapacity=2)
    assert describe(client, name)["AvailableInstanceCount"] == 0
    with pytest.raises(ClientError, match="NotImplemented"):
        client("autoscaling").launch_instances(AutoScalingGroupName=group_name, RequestedCapacity=1, ClientToken="t")


def test_cloud_control_describes_a_reservation(client: Client, aws: EmulatedAws) -> None:
    name, kind = block(aws), "AWS::EC2::CapacityReservation"
    described = client("cloudcontrol").get_resource(TypeName=kind, Identifier=name)
    assert (described["TypeName"], described["ResourceDescription"]["Identifier"]) == (kind, name)
    properties, expected = json.loads(described["ResourceDescription"]["Properties"]), describe(client, name)
    for key in ("InstanceType", "AvailabilityZone", "State", "ReservationType", "AvailableInstanceCount"):
        assert properties[key] == expected[key]
    assert datetime.fromisoformat(properties["EndDate"]) == expected["EndDate"]
    missing = refused(lambda: client("cloudcontrol").get_resource(TypeName=kind, Identifier="cr-0bbbbbbbbbbbbbbbb"))
    assert missing == "ResourceNotFoundException"
