"""A new reservation is pending at first: the launch waits for it, finds it again, and cancels it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import ReservationFailure
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.conftest import REGION
from tests.trainyard.operations.test_reservations import ZONE_A, ZONE_B, ReservedCluster, reserved
from tests.trainyard.operations.test_reserve import Operator
from trainyard.aws import reservations, tags
from trainyard.aws.reservations import CapacityReservation, create_reservation, describe_reservation
from trainyard.operations import pending_reservations
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.reservations import GroupReservations, cancel_reservations_of_stack
from trainyard.operations.reserve import cancel_held_capacity

__all__ = ["reserved"]


@pytest.fixture(autouse=True)
def pending(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New reservations are pending for a second."""
    monkeypatch.setattr(pending_reservations, "POLL_SECONDS", 0.1)
    account.set_timing(Timing(reservation_pending_seconds=1))
    yield
    account.set_timing(Timing())


def state_of(reservation: str) -> str:
    return str(describe_reservation(REGION, reservation)["State"])


def of_earlier_launch(reserved: ReservedCluster, instances: int = 2) -> CapacityReservation:
    """Create a reservation of a launch that ended before its reservation was active."""
    return create_reservation(
        REGION,
        instance_type="c7i.xlarge",
        zone=ZONE_A,
        instances=instances,
        end=time.time() + 1200,
        placement_group_arn=None,
        tags={tags.STACK: reserved.cluster.stack, tags.ROLE: "workers"},
        token=f"{reserved.cluster.stack}-{instances}",
    )


def test_launch_waits_until_its_reservation_is_active(reserved: ReservedCluster) -> None:
    reservation = reserved.reserve()
    assert (reservation.state, reservation.available) == ("active", 2)
    assert len(reserved.add_nodes(reservation)) == 2


def test_next_zone_is_used_when_a_pending_reservation_fails(reserved: ReservedCluster, account: EmulatedAws) -> None:
    account.inject(ReservationFailure(zone=ZONE_A))
    try:
        reservation = reserved.reserve()
    finally:
        account.clear_faults()
    assert (reservation.zone, reservation.state) == (ZONE_B, "active")
    assert [each.id for each in reserved.active()] == [reservation.id]


def test_pending_reservation_of_an_earlier_launch_is_used(reserved: ReservedCluster) -> None:
    earlier = of_earlier_launch(reserved, instances=1)
    assert earlier.state == "pending"
    reservation = reserved.reserve()  # also resizes it, which EC2 refuses while it is pending
    assert (reservation.id, reservation.available) == (earlier.id, 2)
    assert [each.id for each in reserved.active()] == [earlier.id]


def test_reservation_that_ec2_does_not_describe_yet_is_waited_for(
    reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, errors = reservations.read_reservation, iter(["InvalidCapacityReservationId.NotFound"])

    def read_later(region: str, name: str) -> CapacityReservation:
        for code in errors:
            raise ClientError({"Error": {"Code": code, "Message": name}}, "DescribeCapacityReservations")
        return read(region, name)

    monkeypatch.setattr(reservations, "read_reservation", read_later)
    assert reserved.reserve().state == "active"


def test_pending_reservation_is_cancelled_by_stop(reserved: ReservedCluster) -> None:
    earlier = of_earlier_launch(reserved)
    cancel_reservations_of_stack(REGION, reserved.cluster.stack, reserved.display)
    assert state_of(earlier.id) == "cancelled"
    assert f"capacity cancelled {earlier.id}" in reserved.display.lines


def test_reservation_is_cancelled_when_the_launch_ends_while_it_is_pending(reserved: ReservedCluster) -> None:
    checks = iter([None])

    def require_not_ended() -> None:
        if next(checks, "stop") == "stop":
            raise LaunchError("trainyard stop")

    launch = GroupReservations(reserved.cluster.manifest, reserved.display, require_not_ended)
    (group,) = reserved.cluster.manifest.groups
    with pytest.raises(LaunchError, match="trainyard stop"):
        launch.reserve(group, 2, 1200)
    assert reserved.active() == []


def test_reservation_that_stays_pending_is_an_error(
    account: EmulatedAws, reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.set_timing(Timing(reservation_pending_seconds=3))
    monkeypatch.setattr(pending_reservations, "TIMEOUT_SECONDS", 0.3)
    with pytest.raises(CapacityError, match=r"cr-\w+ is still pending after"):
        reserved.reserve()
    monkeypatch.undo()  # then the fixture waits until it can cancel it


def test_held_capacity_is_active_and_can_be_cancelled_while_it_is_pending(tmp_path: Path) -> None:
    operator = Operator()
    held = operator.reserve()
    assert state_of(held.reservation) == "active"
    assert operator.reserve().reservation == held.reservation
    assert cancel_held_capacity(operator.cluster, operator.display) == [held.reservation]
