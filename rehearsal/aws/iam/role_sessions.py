"""Limits of AssumeRole that moto does not have: the length of a session policy, and the duration of a chained session.

Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html (Policy, DurationSeconds) and
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles.html#iam-term-role-chaining
"""

from typing import Any

from moto.sts.exceptions import STSValidationError
from moto.sts.responses import TokenResponse

from rehearsal.aws.iam.callers import CALLER
from rehearsal.aws.moto_extension import extend

MAX_POLICY_CHARACTERS = 2048
MAX_CHAINED_SECONDS = 3600


def install() -> None:
    """Add the checks to moto."""
    moto_assume_role = TokenResponse.assume_role

    def assume_role(self: Any) -> Any:
        if len(self._get_param("Policy") or "") > MAX_POLICY_CHARACTERS:
            raise STSValidationError(
                "1 validation error detected: Value at 'policy' failed to satisfy constraint: Member must have length "
                f"less than or equal to {MAX_POLICY_CHARACTERS}"
            )
        if CALLER.get() is not None and self._get_int_param("DurationSeconds", 3600) > MAX_CHAINED_SECONDS:
            raise STSValidationError(
                "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining"
            )
        return moto_assume_role(self)

    extend(TokenResponse, assume_role)
