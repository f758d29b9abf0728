"""Authorization of AWS services: by resource policies, and by trust policies of roles."""

from typing import Any

from rehearsal.aws.iam.policies import AccessRequest, Principal, evaluate_policies
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.key_policies import key_request


def _service_context(service: str, source: str) -> dict[str, str | None]:
    """Return the condition keys of a request by a service on behalf of the resource `source` (an ARN)."""
    return {
        "aws:sourcearn": source,
        "aws:sourceaccount": ACCOUNT,
        "aws:sourceowner": ACCOUNT,
        "aws:principalisawsservice": "true",
        "aws:principalservicename": service,
        "aws:principalarn": None,
        "aws:principalaccount": None,
    }


def policy_allows(policy: str, request: AccessRequest, service: str, source: str) -> bool:
    """Return whether a resource policy allows the request by a service on behalf of `source`."""
    return (
        evaluate_policies(
            [policy],
            request.with_context(_service_context(service, source)),
            Principal(frozenset([service]), "Service"),
        )
        == "Allow"
    )


def can_assume_role(role: Any, service: str, source: str) -> bool:
    """Return whether the role's trust policy lets the service assume it on behalf of `source`."""
    return policy_allows(role.assume_role_policy_document, AccessRequest("sts:AssumeRole", None), service, source)


def can_use_key(key: Any, actions: tuple[str, ...], service: str, source: str, context: dict[str, str]) -> bool:
    """Return whether the service can use a customer managed key.

    `context`: condition keys of the encryption context.
    """
    if key is None or key.key_state != "Enabled":
        return False
    return all(
        policy_allows(key.policy, key_request(action, key).with_context(context), service, source) for action in actions
    )
