"""Payments of Capacity Blocks and of their extensions: pending at first, then received or failed.

Sources: EC2 user guide, "View Capacity Blocks" (states payment-pending, payment-failed and scheduled) and "Extend
Capacity Blocks"; API reference, CapacityReservation, State: a payment that AWS does not process within 12 hours has
failed, and the block is released. That a failed payment fails as soon as another would be received is an assumption.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.timing import timing

_pending: list["Payment"] = []


class Payment:
    """A payment, which AWS processes after a time of the account's timing. `receive` is called when it succeeds."""

    def __init__(self, latest: float | None = None, receive: Callable[[], None] = lambda: None) -> None:
        """`latest`: Unix time at which AWS has processed it in any case."""
        self.status: Literal["pending", "succeeded", "failed"] = "pending"
        self._receive = receive
        due = CLOCK.now() + timing().block_payment_seconds
        self.due = due if latest is None else min(due, latest)
        _pending.append(self)
        if self.due <= CLOCK.now():
            self.process()

    def process(self) -> None:
        """Receive the payment, or let it fail by the fault `payment-failure`."""
        _pending.remove(self)
        self.status = "failed" if ACTIVE_FAULTS.payments_fail() else "succeeded"
        if self.status == "succeeded":
            self._receive()


def _due_payments() -> Iterator[Due]:
    for payment in list(_pending):
        yield payment.due, payment.process


def install() -> None:
    """Add the payments to the clock."""
    CLOCK.add_source(_due_payments)
