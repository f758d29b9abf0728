"""Pending capacity reservations: until EC2 activates them, they cannot be used, changed or cancelled.

EC2 user guide, "View the state of a Capacity Reservation": it may be pending for up to 5 minutes. API reference,
ModifyCapacityReservation and CancelCapacityReservation: neither has an effect on a pending reservation.
"""

import time
from collections.abc import Callable, Iterable

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import reservations
from trainyard.aws.reservations import CapacityReservation
from trainyard.operations.errors import CapacityError
from trainyard.operations.progress import Display

TIMEOUT_SECONDS, POLL_SECONDS = 10 * 60.0, 2.0


class ReservationEndedError(CapacityError):
    """A pending reservation did not become active. `state`: its state, such as failed when EC2 has no capacity."""

    def __init__(self, reservation: CapacityReservation) -> None:
        super().__init__(f"reservation {reservation.id} in {reservation.zone} is {reservation.state}, not active")
        self.state = reservation.state


def wait_until_active(
    region: str, reservation: CapacityReservation, display: Display, before_poll: Callable[[], None] = lambda: None
) -> CapacityReservation:
    """Return the reservation as soon as it is active.

    `before_poll` raises an error to end the wait. Raises CapacityError after TIMEOUT_SECONDS, and
    ReservationEndedError for a reservation that has failed or was cancelled.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while reservation.state == "pending":
        if time.monotonic() > deadline:
            raise CapacityError(f"reservation {reservation.id} is still pending after {TIMEOUT_SECONDS / 60:g} minutes")
        display.line("capacity", f"{reservation.id} in {reservation.zone} is pending: waiting until it is active")
        before_poll()
        time.sleep(POLL_SECONDS)
        try:
            reservation = reservations.read_reservation(region, reservation.id)
        except ClientError as error:  # EC2 is eventually consistent: it may not describe a reservation at once
            if error.response["Error"]["Code"] != "InvalidCapacityReservationId.NotFound":
                raise
    if reservation.state != "active":
        raise ReservationEndedError(reservation)
    return reservation


def cancel_reservations(region: str, names: Iterable[str], display: Display) -> None:
    """Cancel reservations; wait for pending ones. One that AWS does not cancel ends by itself, after its end date."""
    for name in names:
        try:
            _cancel(region, name, display)
            display.line("capacity", f"cancelled {name}")
        except (BotoCoreError, ClientError, CapacityError) as error:
            display.line("capacity", f"{name} was not cancelled and ends by itself: {error}")


def _cancel(region: str, name: str, display: Display) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not reservations.cancel_reservation(region, name):
        if time.monotonic() > deadline:
            raise CapacityError(f"it is still pending after {TIMEOUT_SECONDS / 60:g} minutes")
        display.line("capacity", f"{name} is pending: waiting until EC2 can cancel it")
        time.sleep(POLL_SECONDS)
