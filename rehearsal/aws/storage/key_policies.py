"""Authorization to use a KMS key: by its key policy, and by IAM policies where the key policy delegates to the account.

Source: https://docs.aws.amazon.com/kms/latest/developerguide/policy-evaluation.html
"""

from typing import Any

from rehearsal.aws.iam.policies import AccessRequest, Decision, Principal, account_principals, evaluate_policies
from rehearsal.aws.process import ACCOUNT


def key_request(action: str, key: Any, service: str | None = None) -> AccessRequest:
    """Return the access request for a KMS action on a key: direct, or through a service (ec2, s3) of its region."""
    return AccessRequest(
        action,
        key.arn,
        {
            "kms:calleraccount": ACCOUNT,
            "kms:viaservice": f"{service}.{key.region}.amazonaws.com" if service else None,
            "aws:viaawsservice": "true" if service else "false",
            # Services create grants for AWS resources; no other principal does in the emulated account.
            "kms:grantisforawsresource": "true" if service and action == "kms:CreateGrant" else None,
        },
    )


def evaluate_key_policy(
    key: Any, request: AccessRequest, principal: Principal, identity_decision: Decision
) -> Decision:
    """Return the decision of the key policy for a principal. Raises NotImplementedError for a key with grants.

    `identity_decision`: decision of the principal's IAM policies. A statement for the account (its root) allows nothing
    by itself: it lets IAM policies allow.
    """
    if key.grants:
        raise NotImplementedError(f"{request.action} on {key.arn}, which has grants")
    decision = evaluate_policies([key.policy], request, principal)
    if decision is None and identity_decision == "Allow":
        return evaluate_policies([key.policy], request, Principal(account_principals(ACCOUNT)))
    return decision


def key_policy_allows(key: Any, request: AccessRequest, principal: Principal) -> bool:
    """Return whether the key policy alone allows the request, for a principal without IAM policies about keys."""
    return evaluate_key_policy(key, request, principal, None) == "Allow"
