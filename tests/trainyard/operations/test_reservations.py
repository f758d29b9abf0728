"""The launch reserves the capacity of all nodes, zone by zone, before it starts one."""

import secrets
import time
from collections.abc import Iterator, Sequence

import pytest

from rehearsal.aws.faults import Capacity, Deny, MemberOmission, Quota
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import ec2, tags
from trainyard.aws.clients import client
from trainyard.aws.reservations import CapacityReservation, cancel_reservation, create_reservation, find_reservations
from trainyard.operations import capacity_search, reservations, stack_reservations, waiting
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.reservations import GroupReservations
from trainyard.operations.worker_groups import WorkerGroups

ZONE_A, ZONE_B = "us-east-1a", "us-east-1b"
WORKER_TYPE = "c7i.xlarge"


class ReservedCluster:
    """A cluster whose group of two nodes requires a reservation, in two zones."""

    def __init__(self) -> None:
        self.cluster = clusters.create_cluster(REGION)
        (group,) = self.cluster.manifest.groups
        self.cluster.set_groups((group.model_copy(update={"reserve": True, "node_usd_per_hour": 32.77}),))
        self.display = RecordingDisplay()

    def wait_minutes(self, minutes: float) -> None:
        limits = self.cluster.manifest.limits.model_copy(update={"capacity_wait_minutes": minutes})
        self.cluster.manifest = self.cluster.manifest.model_copy(update={"limits": limits})

    def group_reservations(self) -> GroupReservations:
        return GroupReservations(self.cluster.manifest, self.display, secrets.token_hex(8))

    def reserve(self, missing: int = 2, running: Sequence[str] = ()) -> CapacityReservation:
        (group,) = self.cluster.manifest.groups
        return self.group_reservations().reserve(group, missing, 1200, running)

    def reserve_until_ended(self, checks: int) -> None:
        """Reserve for a launch that ends: the last of the checks raises an error."""
        passed = iter(range(checks - 1))

        def require_not_ended() -> None:
            if next(passed, None) is None:
                raise LaunchError("ended by the test")

        (group,) = self.cluster.manifest.groups
        launch = GroupReservations(self.cluster.manifest, self.display, "ended", require_not_ended)
        with pytest.raises(LaunchError, match="ended by the test"):
            launch.reserve(group, 2, 1200)

    def add_nodes(self, reservation: CapacityReservation, count: int = 2) -> list[str]:
        workers = WorkerGroups(self.cluster.manifest)
        token = f"run-{time.monotonic_ns()}"
        return workers.add_nodes({"workers": count}, token, self.display, {"workers": reservation})

    def active(self) -> list[CapacityReservation]:
        return find_reservations(REGION, {tags.STACK: self.cluster.stack_tag})

    def reservation_of(self, node: str) -> str | None:
        (described,) = client("ec2", REGION).describe_instances(InstanceIds=[node])["Reservations"]
        name: str | None = described["Instances"][0].get("CapacityReservationId")
        return name


@pytest.fixture
def reserved(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReservedCluster]:
    monkeypatch.setattr(capacity_search, "FIRST_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(reservations, "RETURN_POLL_SECONDS", 0.05)
    created = ReservedCluster()
    yield created
    account.clear_faults()
    account.set_timing(Timing())
    stack_reservations.cancel_reservations_of_stack(REGION, created.cluster.stack_tag, created.display)


def without_capacity(zone: str) -> Capacity:
    return Capacity(limit=0, instance_type=WORKER_TYPE, zone=zone)


def test_first_zone_with_the_capacity_of_all_nodes_is_used(account: EmulatedAws, reserved: ReservedCluster) -> None:
    running = clusters.capacity_limit(account, 1).model_copy(update={"zone": ZONE_A})  # one of two
    account.inject(running)
    reservation = reserved.reserve()
    assert (reservation.zone, reservation.instances) == (ZONE_B, 2)
    assert [each.id for each in reserved.active()] == [reservation.id]
    assert any(f"in {ZONE_B}" in line and "65.54 USD per hour" in line for line in reserved.display.lines)


def test_nodes_start_in_the_reservation_and_its_zone(account: EmulatedAws, reserved: ReservedCluster) -> None:
    account.inject(without_capacity(ZONE_A))
    reservation = reserved.reserve()
    nodes = reserved.add_nodes(reservation)
    assert {reserved.reservation_of(node) for node in nodes} == {reservation.id}
    assert {member["AvailabilityZone"] for member in reserved.cluster.describe_group()["Instances"]} == {ZONE_B}


def test_shortage_in_all_zones_is_retried_and_then_names_them(account: EmulatedAws, reserved: ReservedCluster) -> None:
    account.inject(without_capacity(ZONE_A), without_capacity(ZONE_B))
    reserved.wait_minutes(0.02)
    with pytest.raises(CapacityError) as caught:
        reserved.reserve()
    message = str(caught.value)
    assert f"{ZONE_A}: InsufficientInstanceCapacity, {ZONE_B}: InsufficientInstanceCapacity" in message
    assert "minutes (capacity.wait_minutes: 0.02)" in message
    assert "capacity.wait_minutes" in message
    assert reserved.active() == []


def test_capacity_that_appears_is_reserved(account: EmulatedAws, reserved: ReservedCluster) -> None:
    account.inject(without_capacity(ZONE_A), without_capacity(ZONE_B))
    reserved.wait_minutes(1)
    lines, record = reserved.display.lines, reserved.display.line

    def line(subject: str, text: str) -> None:
        record(subject, text)
        if text.startswith("attempt 1"):
            account.clear_faults()

    reserved.display.line = line  # type: ignore[method-assign]
    assert reserved.reserve().zone == ZONE_A
    assert any("attempt 1: none" in text for text in lines)


def test_launch_that_was_ended_does_not_wait_for_the_next_attempt(
    account: EmulatedAws, reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity_search, "FIRST_RETRY_SECONDS", 30.0)
    monkeypatch.setattr(waiting, "CHECK_SECONDS", 0.05)
    account.inject(without_capacity(ZONE_A), without_capacity(ZONE_B))
    reserved.wait_minutes(5)
    start = time.monotonic()
    reserved.reserve_until_ended(checks=4)  # before, in the first attempt, and twice in the back-off
    assert time.monotonic() - start < 15


def test_quota_is_reported_without_a_retry(account: EmulatedAws, reserved: ReservedCluster) -> None:
    account.inject(Quota(code="L-1216C47A", vcpus=0))
    reserved.wait_minutes(1)
    with pytest.raises(CapacityError, match="InstanceLimitExceeded"):
        reserved.reserve()


def test_existing_reservation_is_used_by_the_next_launch(reserved: ReservedCluster) -> None:
    assert reserved.reserve().id == reserved.reserve().id


def test_existing_reservation_grows_with_the_run(reserved: ReservedCluster) -> None:
    reservation = reserved.reserve()
    scaled = reserved.reserve(1, reserved.add_nodes(reservation))
    assert (scaled.id, scaled.instances) == (reservation.id, 3)
    assert len(reserved.add_nodes(scaled, 1)) == 1


def test_incomplete_response_does_not_reduce_an_existing_reservation(
    account: EmulatedAws, reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ec2, "DESCRIBE_DELAY_SECONDS", 0.0)
    nodes = reserved.add_nodes(reserved.reserve())
    account.inject(MemberOmission(every=2))
    assert [reserved.reserve(1, nodes).instances for _ in range(3)] == [3, 3, 3]


def test_existing_reservation_does_not_end_earlier(reserved: ReservedCluster) -> None:
    (group,) = reserved.cluster.manifest.groups
    reserved.group_reservations().reserve(group, 2, 4 * 3600)
    (held,) = reserved.active()
    reserved.reserve()
    assert [each.end for each in reserved.active()] == [held.end]


def test_reservation_does_not_end_during_the_wait_for_its_capacity(
    account: EmulatedAws, reserved: ReservedCluster
) -> None:
    account.set_timing(Timing(reserved_capacity_return_seconds=4))
    (group,) = reserved.cluster.manifest.groups
    reservation = reserved.group_reservations().reserve(group, 2, 1200)
    client("ec2", REGION).terminate_instances(InstanceIds=reserved.add_nodes(reservation))
    ends = client("ec2", REGION).modify_capacity_reservation
    ends(CapacityReservationId=reservation.id, EndDateType="limited", EndDate=time.time() + 2)
    assert reserved.group_reservations().reserve(group, 2, hold_seconds=3).id == reservation.id


def test_pending_reservation_of_an_interrupted_search_is_cancelled_although_it_is_not_listed(
    account: EmulatedAws, reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.set_timing(Timing(reservation_pending_seconds=1))
    monkeypatch.setattr(capacity_search, "find_reservations", lambda *_: [])
    reserved.reserve_until_ended(checks=3)
    assert reserved.active() == []


def test_scale_out_without_capacity_names_the_reservation(account: EmulatedAws, reserved: ReservedCluster) -> None:
    reservation = reserved.reserve()
    nodes = reserved.add_nodes(reservation)
    account.inject(without_capacity(ZONE_A))
    with pytest.raises(CapacityError, match=rf"{reservation.id} in {ZONE_A} has 2 instances"):
        reserved.reserve(1, nodes)


def test_scale_out_reserves_only_the_missing_nodes_in_the_zone_of_the_others(reserved: ReservedCluster) -> None:
    """The reservation of the running nodes has ended."""
    nodes = reserved.cluster.launch_instances(2)
    created = reserved.reserve(1, nodes)
    assert (created.zone, created.instances) == (ZONE_A, 1)


def test_scale_out_does_not_search_other_zones(account: EmulatedAws, reserved: ReservedCluster) -> None:
    nodes = reserved.cluster.launch_instances(2)
    account.inject(without_capacity(ZONE_A))
    with pytest.raises(CapacityError, match=f": {ZONE_A}: InsufficientInstanceCapacity. Increase"):
        reserved.reserve(1, nodes)


def test_rollback_restores_the_size_of_an_enlarged_reservation(reserved: ReservedCluster) -> None:
    nodes = reserved.add_nodes(reserved.reserve())
    group_reservations, (group,) = reserved.group_reservations(), reserved.cluster.manifest.groups
    group_reservations.reserve(group, 1, 1200, nodes)
    group_reservations.rollback()
    assert [each.instances for each in reserved.active()] == [2]


def test_rollback_does_not_reduce_a_reservation_that_a_later_launch_uses(reserved: ReservedCluster) -> None:
    nodes = reserved.add_nodes(reserved.reserve())
    earlier, (group,) = reserved.group_reservations(), reserved.cluster.manifest.groups
    earlier.reserve(group, 1, 1200, nodes)
    reserved.reserve(1, nodes)
    earlier.rollback()
    assert [each.instances for each in reserved.active()] == [3]


def test_launch_that_was_replaced_does_not_take_the_reservation_of_the_later_launch(reserved: ReservedCluster) -> None:
    launch_id = reserved.reserve().launch_id
    reserved.reserve_until_ended(checks=1)
    assert [each.launch_id for each in reserved.active()] == [launch_id]


def test_launch_waits_for_the_capacity_of_terminated_nodes(account: EmulatedAws, reserved: ReservedCluster) -> None:
    account.set_timing(Timing(reserved_capacity_return_seconds=1))
    reservation = reserved.reserve()
    client("ec2", REGION).terminate_instances(InstanceIds=reserved.add_nodes(reservation))
    assert reserved.reserve().id == reservation.id
    assert reserved.active()[0].available == 2


def test_launch_that_ends_while_it_waits_for_the_capacity_of_terminated_nodes(
    account: EmulatedAws, reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.set_timing(Timing(reserved_capacity_return_seconds=30))
    monkeypatch.setattr(reservations, "RETURN_TIMEOUT_SECONDS", 5.0)
    client("ec2", REGION).terminate_instances(InstanceIds=reserved.add_nodes(reserved.reserve()))
    reserved.reserve_until_ended(checks=2)


def test_reservation_that_was_cancelled_is_replaced_by_the_next_launch(reserved: ReservedCluster) -> None:
    reservation = reserved.reserve()
    cancel_reservation(REGION, reservation.id)
    with pytest.raises(CapacityError, match=f"^{reservation.id} is cancelled: launch again: trainyard up -s "):
        reserved.group_reservations().wait_for_capacity(reservation.id, 2)


def test_reservation_of_another_type_is_cancelled(reserved: ReservedCluster) -> None:
    other = create_reservation(
        REGION,
        instance_type="c7i.2xlarge",
        zone=ZONE_A,
        instances=2,
        end=time.time() + 1200,
        placement_group_arn=None,
        tags={tags.STACK: reserved.cluster.stack_tag, tags.ROLE: "workers"},
        token="other",
    )
    assert reserved.reserve().id != other.id
    assert other.id not in [each.id for each in reserved.active()]


def test_surplus_reservation_is_cancelled(reserved: ReservedCluster) -> None:
    first = reserved.reserve()
    create_reservation(
        REGION,
        instance_type=WORKER_TYPE,
        zone=ZONE_B,
        instances=2,
        end=time.time() + 1200,
        placement_group_arn=None,
        tags={tags.STACK: reserved.cluster.stack_tag, tags.ROLE: "workers"},
        token="surplus",
    )
    assert reserved.reserve().id == first.id
    assert [each.id for each in reserved.active()] == [first.id]


def test_refused_extension_of_an_existing_reservation_names_the_action(
    account: EmulatedAws, reserved: ReservedCluster
) -> None:
    reservation = reserved.reserve()
    account.inject(Deny(operation="ec2:ModifyCapacityReservation"))
    with pytest.raises(CapacityError, match=f"the end of {reservation.id}: .*trainyard stop -s"):
        reserved.reserve()


def test_group_without_reservation_tries_each_zone(account: EmulatedAws, reserved: ReservedCluster) -> None:
    account.inject(without_capacity(ZONE_A))
    workers = WorkerGroups(reserved.cluster.manifest)
    assert len(workers.add_nodes({"workers": 2}, "run-zones", reserved.display)) == 2
    assert {member["AvailabilityZone"] for member in reserved.cluster.describe_group()["Instances"]} == {ZONE_B}


def test_end_of_the_reservation_does_not_pass_during_the_search(
    account: EmulatedAws, reserved: ReservedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search may take longer than the lease."""
    account.inject(without_capacity(ZONE_A), without_capacity(ZONE_B))
    reserved.wait_minutes(1)
    monkeypatch.setattr(capacity_search, "FIRST_RETRY_SECONDS", 2.0)

    def line(subject: str, text: str) -> None:
        if text.startswith("attempt 1"):
            account.clear_faults()

    reserved.display.line = line  # type: ignore[method-assign]
    (group,) = reserved.cluster.manifest.groups
    assert reserved.group_reservations().reserve(group, 2, hold_seconds=1.5).zone == ZONE_A
