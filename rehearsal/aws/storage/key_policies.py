"""Who may use a KMS key: its own policy says, and where that hands the matter to the account, IAM's policies do.

Source: https://docs.aws.amazon.com/kms/latest/developerguide/policy-evaluation.html
"""

from typing import Any

from rehearsal.aws.iam.policies import Ask, Verdict, Who, account_of, judge
from rehearsal.aws.process import ACCOUNT


def key_ask(action: str, key: Any, service: str | None = None) -> Ask:
    """The right to use a key: directly, or through a service (ec2, s3) of its region."""
    return Ask(
        action,
        key.arn,
        {
            "kms:calleraccount": ACCOUNT,
            "kms:viaservice": f"{service}.{key.region}.amazonaws.com" if service else None,
            # Services make grants for themselves; nobody else does here.
            "kms:grantisforawsresource": "true" if service and action == "kms:CreateGrant" else None,
        },
    )


def by_key(key: Any, ask: Ask, who: Who, own: Verdict) -> Verdict:
    """What the key's policy says of `who`, with what its own IAM policies say. Raises NotImplementedError for grants.

    A statement for the account (its root) is no right yet: it lets IAM's policies give it.
    """
    if key.grants:
        raise NotImplementedError(f"{ask.action} on {key.arn}, which has grants")
    named = judge([key.policy], ask, who)
    if named is None and own == "Allow":
        return judge([key.policy], ask, Who(account_of(ACCOUNT)))
    return named


def principal_may(key: Any, ask: Ask, who: Who) -> bool:
    """Whether the key's policy alone lets `who` use it: what has no IAM policies, or none that speak of keys."""
    return by_key(key, ask, who, None) == "Allow"
