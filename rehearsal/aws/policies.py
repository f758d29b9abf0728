"""Policy documents: what one says of an action on a resource. What can't be judged here is an error, never a grant."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

Verdict = Literal["Allow", "Deny"] | None
"""None: nothing that the documents say is about it."""

_ELEMENTS = frozenset(
    ["Sid", "Effect", "Principal", "Action", "NotAction", "Resource", "NotResource", "Condition"],
)


@dataclass(frozen=True)
class Ask:
    """One action on one resource, as a policy sees it.

    `resource`: its ARN, or * for an action that knows no narrower one; None where it is not known which it needs.
    `context`: the request's condition keys, in small letters; None where AWS knows the key and this request has it not.
    `tags`: the resource's own; None where they are not looked up.
    """

    action: str
    resource: str | None
    context: Mapping[str, str | None] = field(default_factory=dict)
    tags: Mapping[str, str] | None = None

    def value(self, key: str) -> str | None:
        """What a condition key stands for in this request. Raises NotImplementedError for one that is not known."""
        small = key.lower()
        prefix, _, name = small.partition("/")
        if prefix in {"aws:resourcetag", f"{self.action.partition(':')[0]}:resourcetag"} and self.tags is not None:
            return next((value for tag, value in self.tags.items() if tag.lower() == name), None)
        # The emulated AWS speaks plain HTTP on the loopback where AWS speaks TLS: every request counts as secure.
        known = {"aws:securetransport": "true", **self.context}
        if small not in known:
            raise NotImplementedError(f"policy condition key {key} of {self.action}")
        return known[small]


def judge(documents: Iterable[str | bytes], ask: Ask) -> Verdict:
    """What the documents together say. An explicit denial wins."""
    found = {
        statement["Effect"] for document in documents for statement in _statements(document) if _on(statement, ask)
    }
    return "Deny" if "Deny" in found else "Allow" if "Allow" in found else None


@lru_cache(maxsize=1024)
def _statements(document: str | bytes) -> tuple[dict[str, Any], ...]:
    """By the document's whole text: a changed one is another."""
    found = tuple(_listed(json.loads(document)["Statement"]))
    for statement in found:
        if unknown := set(statement) - _ELEMENTS:
            raise NotImplementedError(f"policy element {', '.join(sorted(unknown))}")
        if statement["Effect"] not in ("Allow", "Deny"):
            raise NotImplementedError(f"policy effect {statement['Effect']}")
        if statement.get("Principal", "*") not in ("*", {"AWS": "*"}, {"AWS": ["*"]}):
            raise NotImplementedError(f"policy for the principal {statement['Principal']}")
    return found


def _on(statement: Mapping[str, Any], ask: Ask) -> bool:
    if "NotAction" in statement:
        concerned = not _any(statement["NotAction"], ask.action, re.IGNORECASE)
    else:
        concerned = _any(statement["Action"], ask.action, re.IGNORECASE)
    return concerned and _on_resource(statement, ask) and _met(statement.get("Condition", {}), ask)


def _on_resource(statement: Mapping[str, Any], ask: Ask) -> bool:
    if "*" in _listed(statement.get("Resource")):
        return True
    if ask.resource is None:
        raise NotImplementedError(f"a policy that names resources of {ask.action}")
    if "NotResource" in statement:
        return not _any(statement["NotResource"], ask.resource)
    return _any(statement["Resource"], ask.resource)


def _met(conditions: Mapping[str, Mapping[str, Any]], ask: Ask) -> bool:
    """All operators and all of their keys must hold. Each is looked at, so that an unknown one is seen."""
    holds = [
        _holds(operator, ask.value(key), wanted)
        for operator, tests in conditions.items()
        for key, wanted in tests.items()
    ]
    return all(holds)


def _holds(operator: str, value: str | None, wanted: Any) -> bool:
    if operator not in _OPERATORS:
        raise NotImplementedError(f"policy condition operator {operator}")
    negated, equal = _OPERATORS[operator]
    return negated != (value is not None and any(equal(_text(each), value) for each in _listed(wanted)))


def _any(patterns: Any, value: str, flags: int = 0) -> bool:
    return any(_pattern(each, flags).fullmatch(value) for each in _listed(patterns))


@lru_cache(maxsize=4096)
def _pattern(text: str, flags: int) -> re.Pattern[str]:
    if "${" in text:
        raise NotImplementedError(f"policy variable in {text}")
    parts = (".*" if each == "*" else "." if each == "?" else re.escape(each) for each in text)
    return re.compile("".join(parts), flags | re.DOTALL)


def _equal(wanted: str, value: str) -> bool:
    if "${" in wanted:
        raise NotImplementedError(f"policy variable in {wanted}")
    return wanted == value


# Whether it asks for the contrary, and how it compares.
_OPERATORS: dict[str, tuple[bool, Callable[[str, str], bool]]] = {
    "StringEquals": (False, _equal),
    "StringNotEquals": (True, _equal),
    "StringLike": (False, _any),
    "StringNotLike": (True, _any),
    "Bool": (False, lambda wanted, value: wanted.lower() == value.lower()),
}


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _text(given: Any) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)
