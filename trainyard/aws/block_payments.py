"""Payments of Capacity Blocks in messages.

AWS releases a block whose payment it has not received in time (API reference, CapacityReservation, State).
"""

PAYMENT_HOURS = 12


def describe_pending_payment(reservation_id: str) -> str:
    """Return what follows from the state payment-pending of a Capacity Block."""
    return (
        f"{reservation_id} is payment-pending: AWS releases the Capacity Block if it does not receive the payment "
        f"within {PAYMENT_HOURS} hours"
    )


def describe_failed_payment(reservation_id: str) -> str:
    """Return what the state payment-failed of a Capacity Block means."""
    return (
        f"{reservation_id} is payment-failed: AWS did not receive the payment within {PAYMENT_HOURS} hours and has "
        "released the Capacity Block"
    )
