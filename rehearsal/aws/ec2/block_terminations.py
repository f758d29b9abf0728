"""Termination of the instances of a Capacity Block before its end.

Source: EC2 user guide, "Capacity Blocks for ML".
"""

from collections.abc import Iterator
from typing import Any

from moto.ec2.models import ec2_backends

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.ec2.terminations import terminate_by_ec2

# "Amazon EC2 will terminate any instances that are still running 30 minutes before the end time of the Capacity Block."
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/launch-template-capacity-blocks.html
TERMINATION_LEAD_SECONDS = 1800.0
# The user has to terminate instances of a P6e-GB200 UltraServer 60 minutes before the end (EC2 user guide, "Capacity
# Blocks for ML"). Assumptions: that EC2 terminates them at that time, and the same for other UltraServers (Trn2).
ULTRASERVER_TERMINATION_LEAD_SECONDS = 3600.0


def _lead_seconds(reservation: CapacityReservation) -> float:
    """Return the seconds from the termination of a Capacity Block's instances until its end."""
    return ULTRASERVER_TERMINATION_LEAD_SECONDS if reservation.ultraserver_type else TERMINATION_LEAD_SECONDS


def _due_terminations() -> Iterator[Due]:
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        for reservation in reservations(backend).values():
            if reservation.is_block and reservation.end is not None and not reservation.instances_terminated:
                when = reservation.end - _lead_seconds(reservation)
                yield when, lambda reservation=reservation: _terminate_instances(reservation)  # type: ignore[misc]


def _terminate_instances(reservation: CapacityReservation) -> None:
    """Terminate the instances of a Capacity Block on behalf of EC2, and notify their Auto Scaling groups."""
    reservation.instances_terminated = True
    minutes = _lead_seconds(reservation) / 60
    for instance in list(reservation.ec2_backend.all_instances()):
        if instance.capacity_reservation_id == reservation.id and instance.state != "terminated":
            terminate_by_ec2(instance, f"Server.CapacityBlockEnding: the Capacity Block ends in {minutes:g} minutes")


def install() -> None:
    """Add the terminations to the clock."""
    CLOCK.add_source(_due_terminations)
