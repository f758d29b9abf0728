"""Limits of cost, idle time and permissions."""

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.field_types import EmailAddress, Number, PolicyArn


class GuardrailSettings(StrictModel):
    """Limits in addition to the job's time limit and the lease."""

    email: EmailAddress | None = Field(
        None,
        description="Address for alarms and budget notifications (AWS sends it a confirmation request); null: no "
        "notifications.",
    )
    budget: bool = Field(
        True,
        description="Whether the stack has a monthly AWS budget. Without permission to read budgets it has none, and "
        "the preview warns.",
    )
    budget_usd: Number | None = Field(
        None,
        gt=0,
        description="Monthly AWS budget of the resources with the stack's tag, USD; null: the maximum cost of a run.",
    )
    max_cost_usd: Number | None = Field(
        None, gt=0, description="The preview refuses a run that could cost more, USD; null: no limit."
    )
    idle_timeout_minutes: Number | None = Field(
        60.0,
        ge=10,
        description="Minutes with idle GPUs (or CPUs) on all nodes after which a run is stopped; null: never.",
    )


class IdentitySettings(StrictModel):
    """IAM roles of head and workers."""

    permissions_boundary: PolicyArn | None = Field(
        None,
        description="Permissions boundary of each IAM role of the stack; null: the stack creates one, which allows its "
        "own resources and the sources of the job.",
    )
