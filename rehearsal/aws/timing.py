"""How long transitional states last in the account, in seconds of its clock."""

from pydantic import Field

from trainyard.base import StrictModel


class Timing(StrictModel):
    """Durations of transitional states."""

    pending_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Seconds from an instance's launch to its state running."
    )
    shutting_down_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Seconds from a termination to the state terminated."
    )
