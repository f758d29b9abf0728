"""Activation, extension and cancellation of capacity reservations, which EC2 refuses while they are pending.

EC2 user guide, "View the state of a Capacity Reservation": it may be pending for up to 5 minutes. API reference,
ModifyCapacityReservation and CancelCapacityReservation: neither has an effect on a pending reservation.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import reservations, tags
from trainyard.aws.reservations import CapacityReservation
from trainyard.operations.errors import CapacityError
from trainyard.operations.progress import Display
from trainyard.operations.waiting import sleep_with_checks
from trainyard.quantity import quantity

TIMEOUT_SECONDS, POLL_SECONDS = 10 * 60.0, 2.0


def wait_until_active(
    region: str, reservation: CapacityReservation, display: Display, before_poll: Callable[[], None] = lambda: None
) -> CapacityReservation:
    """Return the reservation in its first state after pending: active, or failed when EC2 has no capacity.

    One that is still pending after TIMEOUT_SECONDS is cancelled, and returned with this state. `before_poll` raises an
    error to end the wait.
    """

    def is_settled() -> bool:
        nonlocal reservation
        try:
            reservation = reservations.read_reservation(region, reservation.id)
        except ClientError as error:  # EC2 is eventually consistent: it may not describe a reservation at once
            if error.response["Error"]["Code"] != "InvalidCapacityReservationId.NotFound":
                raise
        return reservation.state != "pending"

    text = f"{reservation.id} in {reservation.zone} is pending: waiting until it is active"
    if reservation.state == "pending" and not _poll(is_settled, text, display, before_poll):
        reason = f", which was pending for {quantity(TIMEOUT_SECONDS / 60, 'minute')}"
        cancel_reservations(region, [reservation.id], display, reason=reason, before_poll=before_poll)
    return reservation


def cancel_reservations(
    region: str,
    reservation_ids: Iterable[str],
    display: Display,
    *,
    launch_id: str | None = None,
    reason: str = "",
    before_poll: Callable[[], None] = lambda: None,
) -> None:
    """Cancel reservations; wait for pending ones. One that AWS does not cancel ends by itself, after its end date.

    `launch_id`: cancel only those that still have the tag of this launch. `reason`: displayed after the id.
    `before_poll` raises an error to end the wait.
    """
    for reservation_id in reservation_ids:
        try:
            text = _cancel(region, reservation_id, display, launch_id, reason, before_poll)
        except (BotoCoreError, ClientError, CapacityError) as error:
            command = cancel_command(region, reservation_id)
            text = f"{reservation_id} was not cancelled and is billed until it ends: {error}. To cancel it: {command}"
        display.line("capacity", text)


def extend_reservation(region: str, reservation: CapacityReservation, end: float, action: str) -> CapacityReservation:
    """Move the end of a reservation to `end` (Unix time, seconds), if that is later; return the reservation.

    Raises CapacityError, whose message ends with the `action` of the user.
    """
    if reservation.end is None or reservation.end >= end:
        return reservation
    try:
        reservations.extend_reservations(region, [reservation.id], end)
    except ClientError as error:
        raise CapacityError(f"AWS does not move the end of {reservation.id}: {error}. {action}") from error
    return replace(reservation, end=end)


def cancel_command(region: str, reservation_id: str) -> str:
    """Return the command of the AWS CLI that cancels a reservation."""
    return f"aws ec2 cancel-capacity-reservation --region {region} --capacity-reservation-id {reservation_id}"


def list_command(region: str, stack_tag: str) -> str:
    """Return the command of the AWS CLI that lists the reservations of a stack."""
    filters = f"--filters Name=tag:{tags.STACK},Values={stack_tag}"
    return f"aws ec2 describe-capacity-reservations --region {region} {filters}"


def _cancel(
    region: str,
    reservation_id: str,
    display: Display,
    launch_id: str | None,
    reason: str,
    before_poll: Callable[[], None],
) -> str:
    """Cancel a reservation, unless a later launch uses it; return what was done."""
    is_own = True

    def is_done() -> bool:
        nonlocal is_own  # in each poll: a later launch may take it over while it is pending
        if launch_id is not None:
            is_own = reservations.read_reservation(region, reservation_id).launch_id == launch_id
        return not is_own or reservations.cancel_reservation(region, reservation_id)

    if not _poll(is_done, f"{reservation_id} is pending: waiting until EC2 can cancel it", display, before_poll):
        raise CapacityError(f"it is still pending after {quantity(TIMEOUT_SECONDS / 60, 'minute')}")
    if not is_own:
        return f"{reservation_id} is not cancelled: a later launch uses it"
    return f"cancelled {reservation_id}{reason}"


def _poll(is_done: Callable[[], bool], text: str, display: Display, before_poll: Callable[[], None]) -> bool:
    """Return whether `is_done` returns True within TIMEOUT_SECONDS; display the text before each wait."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_done():
        if time.monotonic() > deadline:
            return False
        display.line("capacity", text)
        sleep_with_checks(POLL_SECONDS, before_poll)
    return True
