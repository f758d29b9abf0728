"""What bounds a cluster: its cost, its idleness, and what its roles may ever be allowed."""

from pydantic import Field

from trainyard.base import Contract
from trainyard.config.numbers import Number
from trainyard.config.settings.names import EmailAddress, PolicyArn


class GuardrailSettings(Contract):
    """Limits beside the job's time limit and the lease."""

    email: EmailAddress | None = Field(
        None, description="Where alarms and the budget's notices go (AWS asks the address to confirm); none: nowhere."
    )
    budget_usd: Number | None = Field(
        None, gt=0, description="Monthly AWS budget of all that bears the stack's tag, USD; none: the capped cost."
    )
    max_cost_usd: Number | None = Field(
        None, gt=0, description="Cost that a run must not be able to reach, USD; none: no such cap."
    )
    idle_minutes: Number | None = Field(
        60.0, ge=10, description="Minutes without work on any node's GPUs (or CPUs) that end a run; none: never."
    )


class IdentitySettings(Contract):
    """Roles of head and workers."""

    permissions_boundary: PolicyArn | None = Field(
        None, description="IAM policy that bounds every role of the stack; none: no boundary."
    )
