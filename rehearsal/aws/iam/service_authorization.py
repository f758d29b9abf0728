"""What a service of AWS may do in its own name: what a resource's policy, or a role's trust, lets it."""

from typing import Any

from rehearsal.aws.iam.policies import Ask, Who, judge
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.key_policies import key_ask


def _acting(service: str, source: str) -> dict[str, str | None]:
    """What a policy sees of a service that acts for the thing of the ARN `source`."""
    return {
        "aws:sourcearn": source,
        "aws:sourceaccount": ACCOUNT,
        "aws:sourceowner": ACCOUNT,
        "aws:principalisawsservice": "true",
        "aws:principalservicename": service,
        "aws:principalarn": None,
        "aws:principalaccount": None,
    }


def lets(policy: str, ask: Ask, service: str, source: str) -> bool:
    """Whether this policy, of a resource, lets the service (its principal) do so for `source`."""
    return judge([policy], ask.also(_acting(service, source)), Who(frozenset([service]), "Service")) == "Allow"


def may_assume(role: Any, service: str, source: str) -> bool:
    return lets(role.assume_role_policy_document, Ask("sts:AssumeRole", None), service, source)


def may_use(key: Any, actions: tuple[str, ...], service: str, source: str, about: dict[str, str]) -> bool:
    """Whether the service may use a customer's key so. `about`: condition keys of the encryption context."""
    if key is None or key.key_state != "Enabled":
        return False
    return all(lets(key.policy, key_ask(action, key).also(about), service, source) for action in actions)
