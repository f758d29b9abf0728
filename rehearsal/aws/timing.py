"""How long transitional states last in the account, in seconds of its clock."""

from pydantic import Field, NonNegativeFloat

from trainyard.base import StrictModel


class Timing(StrictModel):
    """Durations of transitional states."""

    pending_seconds: NonNegativeFloat = Field(0.0, description="From an instance's launch to its state running.")
    large_gpu_pending_seconds: NonNegativeFloat | None = Field(
        None, description="The same for instances with 8 or more GPUs and metal instances; none: as for other types."
    )
    shutting_down_seconds: NonNegativeFloat = Field(0.0, description="From a termination to the state terminated.")
    large_gpu_shutting_down_seconds: NonNegativeFloat | None = Field(
        None, description="The same for instances with 8 or more GPUs and metal instances; none: as for other types."
    )
    reserved_capacity_return_seconds: NonNegativeFloat = Field(
        0.0, description="From the termination of an instance until its capacity reservation has its capacity again."
    )
    reservation_end_delay_seconds: NonNegativeFloat = Field(
        0.0, description="From the EndDate of an On-Demand Capacity Reservation until it ends."
    )
    reservation_pending_seconds: NonNegativeFloat = Field(
        0.0, description="From the request of an On-Demand Capacity Reservation until it is active."
    )
    reservation_assessment_seconds: NonNegativeFloat = Field(
        0.0, description="From the request of a future-dated capacity reservation until EC2 approves or refuses it."
    )
    block_payment_seconds: NonNegativeFloat = Field(
        0.0, description="From the purchase of a Capacity Block or of its extension until the payment is processed."
    )
    impaired_seconds: NonNegativeFloat = Field(
        0.0, description="From the time when an instance does not respond any more until EC2 reports it as impaired."
    )
    fsx_creating_seconds: NonNegativeFloat = Field(1.0, description="From a file system's creation to AVAILABLE.")
    fsx_deleting_seconds: NonNegativeFloat = Field(0.5, description="From a file system's deletion request to its end.")
    skip_os_shutdown_seconds: NonNegativeFloat = Field(
        0.0, description="From a termination with SkipOsShutdown to the state terminated, if that is less."
    )


_current = Timing()


def timing() -> Timing:
    """Return the durations of the account's transitions."""
    return _current


def set_timing(value: Timing) -> None:
    """Set the durations of later transitions."""
    global _current
    _current = value
