"""Capacity of zones, placement groups and reservations: all of a reservation or nothing, and partial launches."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rehearsal.aws.ec2.reservations import PLACEABLE_SHARE
from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import HOUR, clean, describe, launch, refused, reserve, targeting

__all__ = ["clean"]
ZONE_A, ZONE_B = "us-east-1a", "us-east-1b"
GPU: dict[str, Any] = {"InstanceType": "p4d.24xlarge"}
TARGETED: dict[str, Any] = {"InstanceMatchCriteria": "targeted", **GPU}


@pytest.fixture(autouse=True)
def timing(aws: EmulatedAws) -> Iterator[None]:
    yield
    aws.set_timing(Timing())


@pytest.fixture
def placement_group(client: Client, name: str) -> str:
    """Return the ARN of a new cluster placement group `name`."""
    created = client("ec2").create_placement_group(GroupName=name, Strategy="cluster")
    return str(created["PlacementGroup"]["GroupArn"])


def in_group(name: str) -> dict[str, Any]:
    return {"Placement": {"GroupName": name}}


def test_capacity_is_limited_in_one_zone(client: Client, aws: EmulatedAws) -> None:
    aws.inject(Capacity(limit=0, zone=ZONE_A))
    assert refused(lambda: reserve(client, 1, AvailabilityZone=ZONE_A)) == "InsufficientInstanceCapacity"
    assert reserve(client, 1, AvailabilityZone=ZONE_B)


def test_reservation_has_all_instances_or_fails(client: Client, aws: EmulatedAws) -> None:
    aws.inject(Capacity(limit=2, instance_type=GPU["InstanceType"]))
    assert refused(lambda: reserve(client, 3, **TARGETED)) == "InsufficientInstanceCapacity"
    assert describe(client, reserve(client, 2, **TARGETED))["TotalInstanceCount"] == 2


def test_reservation_holds_capacity_without_instances(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.inject(Capacity(limit=2, instance_type=GPU["InstanceType"]))
    reserve(client, 2, **TARGETED)
    assert refused(lambda: launch(client, network, **GPU)) == "InsufficientInstanceCapacity"


def test_new_reservation_is_pending_at_first(client: Client, network: Network, aws: EmulatedAws) -> None:
    """It holds its capacity, and can neither be used nor changed nor cancelled."""
    aws.set_timing(Timing(reservation_pending_seconds=60))
    aws.inject(Capacity(limit=2, instance_type=GPU["InstanceType"]))
    ec2, name = client("ec2"), reserve(client, 2, **TARGETED)
    pending = describe(client, name)
    assert (pending["State"], pending["TotalInstanceCount"], pending["AvailableInstanceCount"]) == ("pending", 2, 0)
    assert refused(lambda: launch(client, network, **GPU, **targeting(name))) == "ReservationCapacityExceeded"
    assert refused(lambda: reserve(client, 1, **TARGETED)) == "InsufficientInstanceCapacity"
    for change in (
        lambda: ec2.modify_capacity_reservation(CapacityReservationId=name, InstanceCount=1),
        lambda: ec2.cancel_capacity_reservation(CapacityReservationId=name),
    ):
        assert refused(change) == "InvalidCapacityReservationState"
    aws.advance_clock(61)
    launched = launch(client, network, 2, **GPU, **targeting(name))
    client("ec2").terminate_instances(InstanceIds=launched)


def test_cancelled_reservation_returns_its_capacity(client: Client, aws: EmulatedAws) -> None:
    aws.inject(Capacity(limit=2, instance_type=GPU["InstanceType"]))
    name = reserve(client, 2, **TARGETED)
    client("ec2").cancel_capacity_reservation(CapacityReservationId=name)
    assert reserve(client, 2, **TARGETED)


def test_reservation_grows_by_all_instances_or_none(client: Client, aws: EmulatedAws) -> None:
    aws.inject(Capacity(limit=3, instance_type=GPU["InstanceType"]))
    name = reserve(client, 2, **TARGETED)

    def resize(count: int) -> None:
        client("ec2").modify_capacity_reservation(CapacityReservationId=name, InstanceCount=count)

    assert refused(lambda: resize(4)) == "InsufficientInstanceCapacity"
    resize(3)
    assert describe(client, name)["TotalInstanceCount"] == 3


def test_end_of_a_reservation_is_moved(client: Client, aws: EmulatedAws) -> None:
    now = datetime.fromtimestamp(int(aws.now()), UTC)
    name = reserve(client, 1, EndDate=now + timedelta(hours=1), EndDateType="limited")
    later = now + timedelta(hours=3)
    client("ec2").modify_capacity_reservation(CapacityReservationId=name, EndDate=later, EndDateType="limited")
    aws.advance_clock(2 * HOUR)
    assert (describe(client, name)["State"], describe(client, name)["EndDate"]) == ("active", later)


def test_reservation_ends_within_an_hour_of_its_end_date(client: Client, aws: EmulatedAws) -> None:
    aws.set_timing(Timing(reservation_end_delay_seconds=HOUR))
    end = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(hours=1)
    name = reserve(client, 1, EndDate=end, EndDateType="limited")
    aws.advance_clock(HOUR + 60)
    assert describe(client, name)["State"] == "active"
    aws.advance_clock(HOUR)
    assert describe(client, name)["State"] == "expired"


def test_future_reservation_is_scheduled_until_it_starts(client: Client, aws: EmulatedAws) -> None:
    start = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(days=6)
    request: dict[str, Any] = {**TARGETED, "StartDate": start}
    assert refused(lambda: reserve(client, 1, **request)) == "InvalidParameterValue"  # without a commitment
    name = reserve(client, 1, **request, CommitmentDuration=14 * 86400)
    assert describe(client, name)["State"] == "scheduled"
    aws.advance_clock(6 * 86400 + 1)
    assert describe(client, name)["State"] == "active"


@pytest.mark.parametrize("unsupported", ["PlacementGroupArn", "InstanceMatchCriteria"])
def test_future_reservation_is_targeted_and_in_no_placement_group(
    client: Client, aws: EmulatedAws, placement_group: str, unsupported: str
) -> None:
    start = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(days=6)
    request: dict[str, Any] = {**TARGETED, "StartDate": start, "CommitmentDuration": 14 * 86400}
    value = {"PlacementGroupArn": placement_group, "InstanceMatchCriteria": "open"}[unsupported]
    assert refused(lambda: reserve(client, 1, **{**request, unsupported: value})) == "InvalidParameterCombination"
    assert describe(client, reserve(client, 1, **request))["State"] == "scheduled"


@pytest.fixture
def future(client: Client, aws: EmulatedAws) -> str:
    """A reservation that starts in six days, and that EC2 assesses for two."""
    aws.set_timing(Timing(reservation_assessment_seconds=2 * 86400))
    start = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(days=6)
    return reserve(client, 2, **TARGETED, StartDate=start, CommitmentDuration=14 * 86400)


def test_future_reservation_is_assessed_before_it_is_scheduled(client: Client, aws: EmulatedAws, future: str) -> None:
    assert describe(client, future)["State"] == "assessing"
    aws.advance_clock(2 * 86400 + 1)
    assert describe(client, future)["State"] == "scheduled"


def test_future_reservation_without_capacity_is_unsupported(client: Client, aws: EmulatedAws, future: str) -> None:
    aws.inject(Capacity(limit=1, instance_type=GPU["InstanceType"]))
    aws.advance_clock(2 * 86400 + 1)
    assert describe(client, future)["State"] == "unsupported"
    aws.advance_clock(5 * 86400)
    assert describe(client, future)["State"] == "unsupported"


def test_reservation_is_cancelled_while_it_is_assessed_but_not_when_scheduled(
    client: Client, aws: EmulatedAws, future: str
) -> None:
    other = reserve(
        client, 1, **TARGETED, StartDate=describe(client, future)["StartDate"], CommitmentDuration=14 * 86400
    )
    client("ec2").cancel_capacity_reservation(CapacityReservationId=other)
    assert describe(client, other)["State"] == "cancelled"
    aws.advance_clock(2 * 86400 + 1)
    cancelled = refused(lambda: client("ec2").cancel_capacity_reservation(CapacityReservationId=future))
    assert cancelled == "InvalidCapacityReservationState"


def test_reserved_capacity_returns_after_minutes(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.set_timing(Timing(reserved_capacity_return_seconds=300))
    name = reserve(client, 1, **TARGETED)
    client("ec2").terminate_instances(InstanceIds=launch(client, network, **GPU, **targeting(name)))
    assert refused(lambda: launch(client, network, **GPU, **targeting(name))) == "ReservationCapacityExceeded"
    aws.advance_clock(301)
    assert launch(client, network, **GPU, **targeting(name))


def test_placement_group_has_fewer_instances_than_its_zone(
    client: Client, network: Network, aws: EmulatedAws, placement_group: str, name: str
) -> None:
    aws.inject(Capacity(limit=2, cluster_placement=True, instance_type=GPU["InstanceType"]))
    assert len(launch(client, network, 3, minimum=1, **GPU, **in_group(name))) == 2
    assert len(launch(client, network, 3, **GPU)) == 3
    request = {**TARGETED, "PlacementGroupArn": placement_group}
    assert refused(lambda: reserve(client, 1, **request)) == "InsufficientInstanceCapacity"


def test_reservation_outside_the_placement_group_gives_a_part(
    client: Client, network: Network, placement_group: str, name: str
) -> None:
    reservation = reserve(client, 3, **TARGETED)
    launched = launch(client, network, 3, minimum=1, **GPU, **targeting(reservation), **in_group(name))
    assert len(launched) == int(3 * PLACEABLE_SHARE)


def test_reservation_in_the_placement_group_gives_all(
    client: Client, network: Network, placement_group: str, name: str
) -> None:
    reservation = reserve(client, 3, **TARGETED, PlacementGroupArn=placement_group)
    assert describe(client, reservation)["PlacementGroupArn"] == placement_group
    assert len(launch(client, network, 3, **GPU, **targeting(reservation), **in_group(name))) == 3


def test_reservation_in_a_placement_group_accepts_only_launches_in_it(
    client: Client, network: Network, placement_group: str
) -> None:
    reservation = reserve(client, 1, **TARGETED, PlacementGroupArn=placement_group)
    assert refused(lambda: launch(client, network, **GPU, **targeting(reservation))) == "ReservationCapacityExceeded"


def test_reservation_in_an_unknown_placement_group_is_refused(client: Client, placement_group: str) -> None:
    request = {**TARGETED, "PlacementGroupArn": f"{placement_group}-other"}
    assert refused(lambda: reserve(client, 1, **request)) == "InvalidPlacementGroup.Unknown"


def test_unused_time_of_a_reservation_is_measured(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = reserve(client, 3, **TARGETED)
    aws.advance_clock(100)  # three unused
    launch(client, network, 2, **GPU, **targeting(name))
    aws.advance_clock(50)  # one unused
    client("ec2").cancel_capacity_reservation(CapacityReservationId=name)
    aws.advance_clock(1000)
    (record,) = [record for record in aws.capacity_reservations() if record.id == name]
    assert record.unused_seconds == pytest.approx(350, abs=5)
