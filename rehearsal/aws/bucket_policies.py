"""Bucket policies with their conditions: moto 5.2.5 denies whatever a Deny statement names, condition or not."""

import json
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket

from rehearsal.aws.extension import extend

# The emulated AWS speaks plain HTTP on the loopback where AWS speaks TLS: every request counts as secure.
_CONTEXT = {"aws:securetransport": "true"}


def install() -> None:
    def get_permission(self: Any, action: str, resource: str) -> Any:
        if self.policy is None:
            return PermissionResult.NEUTRAL
        policy = json.loads(self.policy)
        given = policy["Statement"]
        statements = [each for each in (given if isinstance(given, list) else [given]) if _holds(each)]
        kept = {**policy, "Statement": [{k: v for k, v in each.items() if k != "Condition"} for each in statements]}
        return IAMPolicy(json.dumps(kept)).is_action_permitted(action, resource)

    extend(FakeBucket, get_permission)


def _holds(statement: dict[str, Any]) -> bool:
    """Whether the statement's conditions are met. Only Bool on what we know of a request; any other is a refusal."""
    for operator, tests in statement.get("Condition", {}).items():
        for key, wanted in tests.items():
            if operator != "Bool" or key.lower() not in _CONTEXT:
                raise NotImplementedError(f"bucket policy condition {operator} {key}")
            if str(wanted).lower() != _CONTEXT[key.lower()]:
                return False
    return True
