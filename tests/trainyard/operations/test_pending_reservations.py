"""A new reservation is pending at first: the launch waits for it, finds it again, and cancels it."""

import time
from collections.abc import Callable, Iterator

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Deny, ReservationFailure
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from tests.trainyard.operations.test_reservations import ZONE_A, ZONE_B, ReservedCluster, reserved
from tests.trainyard.operations.test_reserve import Operator
from trainyard.aws import reservations, tags
from trainyard.aws.reservations import CapacityReservation, create_reservation, describe_reservation
from trainyard.operations import pending_reservations
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.reservations import GroupReservations
from trainyard.operations.reserve import cancel_held_capacity
from trainyard.operations.stack_reservations import cancel_reservations_of_stack

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


def of_earlier_launch(reserved: ReservedCluster, instances: int = 2, role: str = "workers") -> CapacityReservation:
    """Create a reservation of a launch that ended before its reservation was active."""
    return create_reservation(
        REGION,
        instance_type="c7i.xlarge",
        zone=ZONE_A,
        instances=instances,
        end=time.time() + 1200,
        placement_group_arn=None,
        tags={tags.STACK: reserved.cluster.stack_tag, tags.ROLE: role},
        token=f"{reserved.cluster.stack}-{instances}-{role}",
    )


def act_on(display: RecordingDisplay, part: str, act: Callable[[], object]) -> None:
    """Call a function once, when the display receives a line that contains this part."""
    record, acts = display.line, [act]

    def line(subject: str, text: str) -> None:
        record(subject, text)
        if part in text and acts:
            acts.pop()()

    display.line = line  # type: ignore[method-assign]


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


def test_reservation_that_cannot_be_tagged_while_it_is_pending_is_tagged_later(
    account: EmulatedAws, reserved: ReservedCluster
) -> None:
    earlier = of_earlier_launch(reserved)
    account.inject(Deny(operation="ec2:CreateTags"))
    act_on(reserved.display, "is pending: waiting until it is active", account.clear_faults)
    launch_id = reserved.reserve().launch_id
    assert launch_id is not None
    assert [(each.id, each.launch_id) for each in reserved.active()] == [(earlier.id, launch_id)]


def test_pending_reservation_is_tagged_before_the_launch_waits_for_it(reserved: ReservedCluster) -> None:
    of_earlier_launch(reserved)
    tagged = list[str | None]()
    act_on(
        reserved.display,
        "is pending: waiting until it is active",
        lambda: tagged.extend(each.launch_id for each in reserved.active()),
    )
    assert reserved.reserve().launch_id in tagged


def test_reservation_with_the_tag_of_a_later_launch_is_not_cancelled(reserved: ReservedCluster) -> None:
    pending = of_earlier_launch(reserved)
    reservations.set_launch(REGION, pending.id, "earlier")
    act_on(
        reserved.display,
        "is pending: waiting until EC2 can cancel it",
        lambda: reservations.set_launch(REGION, pending.id, "later"),
    )
    pending_reservations.cancel_reservations(REGION, [pending.id], reserved.display, launch_id="earlier")
    assert state_of(pending.id) in {"pending", "active"}
    assert reserved.display.lines[-1] == f"capacity {pending.id} is not cancelled: a later launch uses it"


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
    cancel_reservations_of_stack(REGION, reserved.cluster.stack_tag, reserved.display)
    assert state_of(earlier.id) == "cancelled"
    assert f"capacity cancelled {earlier.id}" in reserved.display.lines


def test_reservation_that_cannot_be_cancelled_is_displayed_with_the_command(
    reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = of_earlier_launch(reserved)
    with monkeypatch.context() as patch:
        patch.setattr(pending_reservations, "TIMEOUT_SECONDS", 0.2)
        cancel_reservations_of_stack(REGION, reserved.cluster.stack_tag, reserved.display)
    command = f"aws ec2 cancel-capacity-reservation --region {REGION} --capacity-reservation-id {earlier.id}"
    assert any(line.endswith(f" minutes. To cancel it: {command}") for line in reserved.display.lines)


def test_reservation_is_cancelled_when_the_launch_ends_while_it_is_pending(reserved: ReservedCluster) -> None:
    ended = list[bool]()
    act_on(reserved.display, "is pending: waiting until it is active", lambda: ended.append(True))

    def require_not_ended() -> None:
        if ended:
            raise LaunchError("trainyard stop")

    launch = GroupReservations(reserved.cluster.manifest, reserved.display, "launch", require_not_ended)
    (group,) = reserved.cluster.manifest.groups
    with pytest.raises(LaunchError, match="trainyard stop"):
        launch.reserve(group, 2, 1200)
    assert reserved.active() == []


def test_zones_are_searched_when_the_pending_reservation_of_an_earlier_launch_fails(
    account: EmulatedAws, reserved: ReservedCluster
) -> None:
    account.inject(ReservationFailure(zone=ZONE_A))
    earlier = of_earlier_launch(reserved)
    act_on(reserved.display, f"{earlier.id} in {ZONE_A} is failed", account.clear_faults)
    assert reserved.reserve().id != earlier.id
    assert state_of(earlier.id) == "failed"


@pytest.fixture
def stays_pending(account: EmulatedAws, reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reservation is pending for longer than the launch waits, the next ones are active at once."""
    monkeypatch.setattr(pending_reservations, "TIMEOUT_SECONDS", 0.6)
    act_on(reserved.display, "is pending: waiting until it is active", lambda: account.set_timing(Timing()))


@pytest.mark.usefixtures("stays_pending")
def test_next_zone_is_used_when_a_reservation_stays_pending(reserved: ReservedCluster) -> None:
    reservation = reserved.reserve()
    assert (reservation.zone, reservation.state) == (ZONE_B, "active")
    assert [each.id for each in reserved.active()] == [reservation.id]


@pytest.mark.usefixtures("stays_pending")
def test_zones_are_searched_when_the_reservation_of_an_earlier_launch_stays_pending(reserved: ReservedCluster) -> None:
    earlier = of_earlier_launch(reserved)
    assert reserved.reserve().id != earlier.id
    assert state_of(earlier.id) == "cancelled"


def test_held_capacity_is_active_when_reserve_returns() -> None:
    operator = Operator()
    held = operator.reserve()
    assert state_of(held.reservation) == "active"
    assert cancel_held_capacity(operator.cluster, operator.display) == [held.reservation]


def test_pending_held_capacity_can_be_cancelled(reserved: ReservedCluster) -> None:
    held = of_earlier_launch(reserved, role=tags.HELD_CAPACITY)
    assert held.state == "pending"
    assert cancel_held_capacity(Cluster(reserved.cluster.stack, REGION), reserved.display) == [held.id]
    assert state_of(held.id) == "cancelled"
