"""The capacity reservations of a run, as the controller uses them: their end and their size."""

import logging
import time
from collections.abc import Iterable

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import reservations

CANCEL_POLL_SECONDS = 5.0
# Auto Scaling replaces a node within minutes of its termination, in the place that it leaves in the reservation.
UNUSED_SECONDS = 600.0
LOG = logging.getLogger("controller")


class RunReservations:
    """Moves the end of a run's reservations with the lease, reduces them, and cancels them with the run."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._unused_since: dict[str, float] = {}
        self._cancelled: set[str] = set()
        self._not_cancelled: dict[str, str] = {}  # reservation -> the reason in the log
        self._cancelled_at: float | None = None  # time.monotonic() of the last calls

    def extend(self, reservation_ids: Iterable[str], end: float) -> None:
        """Move the end of the reservations to `end` (Unix time, seconds)."""
        try:
            reservations.extend_reservations(self._region, reservation_ids, end)
        except (BotoCoreError, ClientError) as error:  # the nodes continue as On-Demand Instances
            LOG.error("the capacity reservations were not extended: %s", error)

    def reduce(self, reservation_ids: Iterable[str], now: float) -> None:
        """Remove capacity that was unused for UNUSED_SECONDS, such as that of nodes that a smaller run does not need.

        Call it only while the run needs no more nodes than it has.
        """
        required = set(reservation_ids)
        if not required:
            return
        try:
            described = [each for each in reservations.find_reservations(self._region, {}) if each.id in required]
            since = {each.id: self._unused_since.get(each.id, now) for each in described if each.available}
            self._unused_since = since
            for each in described:
                used = each.instances - each.available
                if used and now > since.get(each.id, now) + UNUSED_SECONDS:
                    LOG.warning("reducing %s from %d to %d instances", each.id, each.instances, used)
                    reservations.resize_reservation(self._region, each.id, used)
        except (BotoCoreError, ClientError) as error:  # the next renewal of the lease repeats it
            LOG.error("the capacity reservations were not reduced: %s", error)

    def reset_unused_timers(self) -> None:
        """Measure from now how long capacity is unused: the run needs it for its missing nodes."""
        self._unused_since = {}

    def cancel(self, reservation_ids: Iterable[str]) -> bool:
        """Cancel the reservations; return whether all are cancelled or have ended.

        Repeat it until then: EC2 does not cancel a pending reservation. Calls within CANCEL_POLL_SECONDS of an attempt
        that failed do nothing. A reason is logged once for each reservation.
        """
        remaining, now = [each for each in reservation_ids if each not in self._cancelled], time.monotonic()
        if self._cancelled_at is not None and now < self._cancelled_at + CANCEL_POLL_SECONDS:
            return not remaining
        for reservation_id in remaining:
            reason = self._cancel(reservation_id)
            if reason is None:
                self._cancelled.add(reservation_id)
            elif self._not_cancelled.get(reservation_id) != reason:
                self._not_cancelled[reservation_id] = reason
                LOG.warning("the capacity reservation %s is not cancelled yet: %s", reservation_id, reason)
        is_complete = self._cancelled.issuperset(remaining)
        self._cancelled_at = None if is_complete else now
        return is_complete

    def _cancel(self, reservation_id: str) -> str | None:
        """Cancel a reservation; return why it was not cancelled."""
        try:
            return None if reservations.cancel_reservation(self._region, reservation_id) else "it is pending"
        except ClientError as error:
            if error.response["Error"]["Code"] == "InvalidCapacityReservationId.NotFound":
                return None
            return str(error.response["Error"]["Code"])  # a message may have the id of the request
        except BotoCoreError as error:
            return type(error).__name__
