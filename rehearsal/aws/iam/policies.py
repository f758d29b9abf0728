"""Evaluation of IAM policy documents. Policy elements that are not supported raise an error and never allow access."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, Literal

Decision = Literal["Allow", "Deny"] | None
"""Result of a policy evaluation. None: no statement applies."""

_ELEMENTS = frozenset(
    ["Sid", "Effect", "Principal", "Action", "NotAction", "Resource", "NotResource", "Condition"],
)


@dataclass(frozen=True)
class AccessRequest:
    """One action on one resource.

    `resource`: ARN; * for an action without resource-level permissions; None if the resource of the call is unknown.
    `context`: condition keys in lower case; the value None is a key that AWS defines but this request does not have.
    `tags`: tags of the resource; None if they are not looked up.
    """

    action: str
    resource: str | None
    context: Mapping[str, str | None] = field(default_factory=dict)
    tags: Mapping[str, str] | None = None

    def with_context(self, context: Mapping[str, str | None]) -> "AccessRequest":
        """Return a copy with additional condition keys. Existing keys take precedence."""
        return replace(self, context={**context, **self.context})

    def value(self, key: str) -> str | None:
        """Return the value of a condition key. Raises NotImplementedError for an unknown key."""
        lower_key = key.lower()
        prefix, _, name = lower_key.partition("/")
        if prefix in {"aws:resourcetag", f"{self.action.partition(':')[0]}:resourcetag"} and self.tags is not None:
            return next((value for tag, value in self.tags.items() if tag.lower() == name), None)
        # The emulated AWS speaks plain HTTP on the loopback where AWS speaks TLS: every request counts as secure.
        context = {"aws:securetransport": "true", **self.context}
        if lower_key not in context:
            raise NotImplementedError(f"policy condition key {key} of {self.action}")
        return context[lower_key]


@dataclass(frozen=True)
class Principal:
    """The names of a principal in resource policies: ARNs, or an AWS service.

    `account`: names of its account; a Deny statement for them also applies to the principal.
    """

    names: frozenset[str]
    kind: Literal["AWS", "Service"] = "AWS"
    account: frozenset[str] = frozenset()


def account_principals(account: str, partition: str = "aws") -> frozenset[str]:
    """Return the names of an account in a policy."""
    return frozenset([account, f"arn:{partition}:iam::{account}:root"])


def evaluate_policies(
    documents: Iterable[str | bytes], request: AccessRequest, principal: Principal | None = None
) -> Decision:
    """Return the combined decision of policy documents. An explicit denial takes precedence.

    `principal`: of resource policies, only statements for it apply. Without it, a policy with a Principal element other
    than * raises NotImplementedError.
    """
    effects = {
        statement["Effect"]
        for document in documents
        for statement in _statements(document)
        if _applies_to_principal(statement, principal) and _applies_to_request(statement, request)
    }
    return "Deny" if "Deny" in effects else "Allow" if "Allow" in effects else None


@lru_cache(maxsize=1024)
def _statements(document: str | bytes) -> tuple[dict[str, Any], ...]:
    """Parse and validate a document. The cache key is the whole text, so that a changed document is parsed again."""
    statements = tuple(_as_list(json.loads(document)["Statement"]))
    for statement in statements:
        if unsupported := set(statement) - _ELEMENTS:
            raise NotImplementedError(f"policy element {', '.join(sorted(unsupported))}")
        if statement["Effect"] not in ("Allow", "Deny"):
            raise NotImplementedError(f"policy effect {statement['Effect']}")
        if unsupported := set(_principals(statement)) - {"AWS", "Service"}:
            raise NotImplementedError(f"policy for a principal of the kind {', '.join(sorted(unsupported))}")
    return statements


def _principals(statement: Mapping[str, Any]) -> dict[str, list[str]]:
    principals = statement.get("Principal", "*")
    if principals == "*":
        return {"AWS": ["*"]}
    return {kind: _as_list(names) for kind, names in principals.items()}


def _applies_to_principal(statement: Mapping[str, Any], principal: Principal | None) -> bool:
    principals = _principals(statement)
    if principal is None:
        if principals != {"AWS": ["*"]}:
            raise NotImplementedError(f"policy for the principal {statement['Principal']}")
        return True
    matching_names = {"*", *principal.names, *(principal.account if statement["Effect"] == "Deny" else ())}
    return not matching_names.isdisjoint(principals.get(principal.kind, []))


def _applies_to_request(statement: Mapping[str, Any], request: AccessRequest) -> bool:
    if "NotAction" in statement:
        action_matches = not _matches_any(statement["NotAction"], request.action, re.IGNORECASE)
    else:
        action_matches = _matches_any(statement["Action"], request.action, re.IGNORECASE)
    return (
        action_matches
        and _applies_to_resource(statement, request)
        and _conditions_hold(statement.get("Condition", {}), request)
    )


def _applies_to_resource(statement: Mapping[str, Any], request: AccessRequest) -> bool:
    if "Resource" not in statement and "NotResource" not in statement:
        return True  # a trust policy applies to the role that has it
    if "*" in _as_list(statement.get("Resource")):
        return True
    if request.resource is None:
        raise NotImplementedError(f"a policy that names resources of {request.action}")
    if "NotResource" in statement:
        return not _matches_any(statement["NotResource"], request.resource)
    return _matches_any(statement["Resource"], request.resource)


def _conditions_hold(conditions: Mapping[str, Mapping[str, Any]], request: AccessRequest) -> bool:
    """Return whether all conditions hold. All are evaluated, so that an unknown condition raises an error."""
    holds = [
        _condition_holds(operator, request.value(key), expected)
        for operator, tests in conditions.items()
        for key, expected in tests.items()
    ]
    return all(holds)


def _condition_holds(operator: str, value: str | None, expected: Any) -> bool:
    if operator == "Null":
        return (value is None) == (_text(expected).lower() == "true")
    plain = operator.removesuffix("IfExists")
    if plain not in _OPERATORS:
        raise NotImplementedError(f"policy condition operator {operator}")
    if value is None and plain != operator:
        return True
    negated, equal = _OPERATORS[plain]
    return negated != (value is not None and any(equal(_text(item), value) for item in _as_list(expected)))


def _matches_any(patterns: Any, value: str, flags: int = 0) -> bool:
    return any(_pattern(item, flags).fullmatch(value) for item in _as_list(patterns))


@lru_cache(maxsize=4096)
def _pattern(text: str, flags: int) -> re.Pattern[str]:
    if "${" in text:
        raise NotImplementedError(f"policy variable in {text}")
    parts = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in text)
    return re.compile("".join(parts), flags | re.DOTALL)


def _equal(expected: str, value: str) -> bool:
    if "${" in expected:
        raise NotImplementedError(f"policy variable in {expected}")
    return expected == value


def _arn(expected: str, value: str) -> bool:
    """Compare ARNs part by part: a * does not match across a colon."""
    expected_parts, parts = expected.split(":", 5), value.split(":", 5)
    return len(expected_parts) == len(parts) and all(map(_matches_any, expected_parts, parts))


def _in_network(expected: str, value: str) -> bool:
    return ip_address(value) in ip_network(expected)


# Operator -> whether it negates the comparison, and the comparison.
_OPERATORS: dict[str, tuple[bool, Callable[[str, str], bool]]] = {
    "StringEquals": (False, _equal),
    "StringNotEquals": (True, _equal),
    "StringLike": (False, _matches_any),
    "StringNotLike": (True, _matches_any),
    "StringEqualsIgnoreCase": (False, lambda expected, value: _equal(expected.lower(), value.lower())),
    "ArnEquals": (False, _arn),
    "ArnLike": (False, _arn),
    "ArnNotEquals": (True, _arn),
    "ArnNotLike": (True, _arn),
    "NumericEquals": (False, lambda expected, value: float(expected) == float(value)),
    "NumericLessThanEquals": (False, lambda expected, value: float(value) <= float(expected)),
    "NumericGreaterThan": (False, lambda expected, value: float(value) > float(expected)),
    "IpAddress": (False, _in_network),
    "NotIpAddress": (True, _in_network),
    "Bool": (False, lambda expected, value: expected.lower() == value.lower()),
}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
