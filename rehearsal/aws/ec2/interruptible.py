"""Interruptible Capacity Reservations: unused instances of a reservation, which its owner can reclaim.

Sources: EC2 user guide, "Interruptible Capacity Reservations for capacity owners", "... for capacity consumers" and
"Monitor interruptible Capacity Reservations". The guide documents two signs of a reclaim: EventBridge events, and the
status `updating` of the source reservation's allocation. It documents none in the instance metadata. Assumptions: the
text of StateTransitionReason; which of the running instances EC2 terminates (here the newest); that launches continue
during a reclaim, as far as instances are available, and their error code ReservationCapacityExceeded otherwise.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from moto.ec2.models import ec2_backends
from moto.events.models import events_backends

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.ec2.terminations import terminate_by_ec2
from rehearsal.aws.ec2.transitions import ENDED_STATES, after_transition
from rehearsal.aws.lookup import find_backend

NOTICE_SECONDS = 120.0
WARNING = "EC2 Capacity Reservation Instance Interruption Warning"
COMPLETION = "EC2 Interruptible Capacity Reservation Allocation Reclamation Completed"


@dataclass
class Allocation:
    """InterruptibleCapacityAllocation: the instances of a source reservation that an interruptible one has.

    `reclaimed`: instances with a notice -> Unix time of their termination; None once it has started. `returns`: Unix
    time and number of instances that the owner allocates again. `completed_at`: Unix time of the last completed change.
    """

    source: CapacityReservation
    reservation: CapacityReservation
    instance_count: int
    target_instance_count: int
    zero_size_preference: str
    reclaimed: dict[Any, float | None] = field(default_factory=dict)
    returns: list[tuple[float, int]] = field(default_factory=list)
    completed_at: float = 0.0
    interruption_type: str = "adhoc"

    @property
    def interruptible_capacity_reservation_id(self) -> str:
        """Id of the interruptible reservation."""
        return self.reservation.id

    @property
    def status(self) -> str:
        """`updating` until the target is reached, then `active`; `canceled` with the reservation."""
        if self.reservation.cancelled_at is not None:
            return "canceled"
        return "updating" if self.instance_count != self.target_instance_count else "active"

    def move(self, count: int) -> None:
        """Move instances from the source to the interruptible reservation; a negative number moves them back."""
        self.source.resize(self.source.total_instance_count - count)
        self.reservation.resize(self.reservation.total_instance_count + count)
        self.instance_count += count
        if self.instance_count == self.target_instance_count:
            self.completed_at = CLOCK.now()
            if count < 0:
                _send_completion(self)
        if self.instance_count == 0 == self.target_instance_count and self.zero_size_preference == "default":
            self.reservation.cancelled_at = CLOCK.now()

    def set_target(self, target: int) -> None:
        """Add or reclaim instances: "we first reclaim available instances, then running instances"."""
        self.target_instance_count = target
        self.move_available()
        when = CLOCK.now() + NOTICE_SECONDS
        for instance in running_instances(self.reservation)[: max(0, self.surplus)]:
            self.reclaimed[instance], instance.is_reclaimed = when, True
            _send_warning(instance, when)

    @property
    def surplus(self) -> int:
        """Instances above the target without a notice."""
        return self.instance_count - len(self.reclaimed) - self.target_instance_count

    def move_available(self) -> None:
        """Move available instances, as many as the target requires."""
        self.move(-min(self.surplus, self.reservation.available_instance_count))

    def terminate(self, instance: Any) -> None:
        """Terminate an instance after its notice; the source has its capacity once it is terminated."""
        self.reclaimed[instance] = None
        if instance.state not in ENDED_STATES:
            terminate_by_ec2(instance, "Server.CapacityReservationReclaimed: the owner reclaimed the capacity")
        after_transition(instance, lambda: self._return_capacity(instance))

    def _return_capacity(self, instance: Any) -> None:
        instance.capacity_reservation_id = None
        del self.reclaimed[instance]
        self.move(-1)


def running_instances(reservation: CapacityReservation) -> list[Any]:
    """Return the instances that run in a reservation, the newest first."""
    instances = [
        instance
        for instance in reservation.ec2_backend.all_instances()
        if instance.capacity_reservation_id == reservation.id and instance.state in ("pending", "running")
    ]
    return sorted(instances, key=lambda instance: float(instance.launched_at), reverse=True)


def allocate(source: CapacityReservation, name: str, count: int, zero_size_preference: str) -> CapacityReservation:
    """Create an interruptible reservation `name` from available instances of the source.

    It is targeted (EC2 user guide). That it keeps the source's placement group is an assumption.
    """
    reservation = CapacityReservation(
        source.ec2_backend,
        name,
        instance_type=source.instance_type,
        zone=source.availability_zone,
        count=0,
        criteria="targeted",
        platform=source.instance_platform,
        ebs_optimized=source.ebs_optimized,
        placement_group=source.placement_group,
        source_id=source.id,
    )
    reservations(source.ec2_backend)[name] = reservation
    source.interruptible_capacity_allocation = Allocation(source, reservation, 0, count, zero_size_preference)
    source.interruptible_capacity_allocation.move(count)
    return reservation


def allocations() -> Iterator[Allocation]:
    """Yield the allocations of all regions."""
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        for reservation in list(reservations(backend).values()):
            if reservation.interruptible_capacity_allocation is not None:
                yield reservation.interruptible_capacity_allocation


def _due_reclaims() -> Iterator[Due]:
    just_now = CLOCK.now() - 1.0  # due: the clock compares with the time before it called this function
    for allocation in allocations():
        if allocation.surplus > 0 < allocation.reservation.available_instance_count:
            yield just_now, allocation.move_available
        for instance, when in allocation.reclaimed.items():
            if when is not None:
                yield when, partial(allocation.terminate, instance)
        if allocation.status != "active":
            continue
        if allocation.returns:
            yield max(allocation.returns[0][0], allocation.completed_at), partial(_allocate_again, allocation)
        running = running_instances(allocation.reservation)
        for fault, when in ACTIVE_FAULTS.reclaims(float(running[-1].launched_at)) if running else ():
            yield when, partial(_reclaim, allocation, fault)


def _reclaim(allocation: Allocation, active_fault: Any) -> None:
    """Reclaim the running instances of the fault, and all that are available."""
    active_fault.remaining, fault = 0, active_fault.fault
    running = len(running_instances(allocation.reservation))
    if fault.return_seconds is not None:
        allocation.returns.append((CLOCK.now() + fault.return_seconds, min(running, fault.count)))
    allocation.set_target(max(0, running - fault.count))


def _allocate_again(allocation: Allocation) -> None:
    """Allocate reclaimed instances again."""
    _, count = allocation.returns.pop(0)
    allocation.set_target(allocation.instance_count + min(count, allocation.source.available_instance_count))


def _send_warning(instance: Any, when: float) -> None:
    zones = instance.ec2_backend.describe_availability_zones()
    zone_id = next(zone.zone_id for zone in zones if zone.name == instance.availability_zone)
    backend = instance.ec2_backend
    arn = f"arn:{backend.partition}:ec2:{backend.region_name}:{backend.account_id}:instance/{instance.id}"
    detail = {
        "instance-id": instance.id,
        "instance-action": "terminate",
        "instance-termination-time": f"{datetime.fromtimestamp(when, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "azId": zone_id,
    }
    _send_event(instance.ec2_backend, WARNING, [arn], detail)


def _send_completion(allocation: Allocation) -> None:
    source = allocation.source
    detail = {
        "sourceCapacityReservationId": source.id,
        "instanceType": source.instance_type,
        "availabilityZoneId": source.availability_zone_id,
        "TotalInstanceCount": source.total_instance_count,
        "targetInstanceCount": allocation.target_instance_count,
    }
    _send_event(source.ec2_backend, COMPLETION, [source.capacity_reservation_arn], detail)


def _send_event(backend: Any, detail_type: str, resources: list[str], detail: dict[str, Any]) -> None:
    """Send an event to the rules of the region's default event bus, if the account uses EventBridge there."""
    events = find_backend(events_backends, backend.account_id, backend.region_name)
    if events is not None:
        event: dict[str, Any] = {
            "Source": "aws.ec2",
            "DetailType": detail_type,
            "Resources": resources,
            "Detail": json.dumps(detail),
        }
        event["Time"] = CLOCK.now()
        events.put_events([event])


def install() -> None:
    """Add the terminations after a reclaim to the clock."""
    CLOCK.add_source(_due_reclaims)
