"""Assessment of future-dated Capacity Reservations: EC2 approves a request, or can't support it.

Source: API reference, CapacityReservation, State. A reservation is `assessing` after the request, `scheduled` once it
is approved, `unsupported` where EC2 has too little capacity.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from moto.ec2.models import ec2_backends

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.ec2.zone_capacity import free_capacity
from rehearsal.aws.timing import timing


def start_assessment(reservation: CapacityReservation) -> None:
    """Put a reservation that starts in the future in the state assessing."""
    if reservation.start > CLOCK.now():
        reservation.assessment = "assessing"


def _due_assessments() -> Iterator[Due]:
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        for reservation in reservations(backend).values():
            if reservation.assessment == "assessing" and reservation.cancelled_at is None:
                when = min(reservation.created + timing().reservation_assessment_seconds, reservation.start)
                yield when, partial(_assess, reservation)


def _assess(reservation: CapacityReservation) -> None:
    """Approve the request if the zone has the capacity now: that EC2 looks at the present is an assumption."""
    backend, group = reservation.ec2_backend, reservation.placement_group or ""
    zone, count = reservation.availability_zone, reservation.total_instance_count
    free = free_capacity(backend, reservation.instance_type, zone, count, group)
    reservation.assessment = "scheduled" if free >= count else "unsupported"


def install() -> None:
    """Add the assessments to the clock."""
    CLOCK.add_source(_due_assessments)
