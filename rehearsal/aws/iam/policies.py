"""Policy documents: what one says of an action on a resource. What can't be judged here is an error, never a grant."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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

    def also(self, context: Mapping[str, str | None]) -> "Ask":
        """The same with more in its context, where that does not tell it yet."""
        return replace(self, context={**context, **self.context})

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


@dataclass(frozen=True)
class Who:
    """Whom a resource's policy may mean, by ARN or as a service of AWS. What is denied to `account` is denied to it."""

    names: frozenset[str]
    kind: Literal["AWS", "Service"] = "AWS"
    account: frozenset[str] = frozenset()


def account_of(account: str, partition: str = "aws") -> frozenset[str]:
    """An account, as a policy names it."""
    return frozenset([account, f"arn:{partition}:iam::{account}:root"])


def judge(documents: Iterable[str | bytes], ask: Ask, who: Who | None = None) -> Verdict:
    """What the documents together say. An explicit denial wins.

    Of a resource's policies only what speaks of `who`; without it a policy that names somebody can't be judged.
    """
    found = {
        statement["Effect"]
        for document in documents
        for statement in _statements(document)
        if _of(statement, who) and _on(statement, ask)
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
        if unknown := set(_principals(statement)) - {"AWS", "Service"}:
            raise NotImplementedError(f"policy for a principal of the kind {', '.join(sorted(unknown))}")
    return found


def _principals(statement: Mapping[str, Any]) -> dict[str, list[str]]:
    given = statement.get("Principal", "*")
    return {"AWS": ["*"]} if given == "*" else {kind: _listed(names) for kind, names in given.items()}


def _of(statement: Mapping[str, Any], who: Who | None) -> bool:
    named = _principals(statement)
    if who is None:
        if named != {"AWS": ["*"]}:
            raise NotImplementedError(f"policy for the principal {statement['Principal']}")
        return True
    wanted = {"*", *who.names, *(who.account if statement["Effect"] == "Deny" else ())}
    return not wanted.isdisjoint(named.get(who.kind, []))


def _on(statement: Mapping[str, Any], ask: Ask) -> bool:
    if "NotAction" in statement:
        concerned = not _any(statement["NotAction"], ask.action, re.IGNORECASE)
    else:
        concerned = _any(statement["Action"], ask.action, re.IGNORECASE)
    return concerned and _on_resource(statement, ask) and _met(statement.get("Condition", {}), ask)


def _on_resource(statement: Mapping[str, Any], ask: Ask) -> bool:
    if "Resource" not in statement and "NotResource" not in statement:
        return True  # the trust policy of a role: it is about that role
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
    if operator == "Null":
        return (value is None) == (_text(wanted).lower() == "true")
    plain = operator.removesuffix("IfExists")
    if plain not in _OPERATORS:
        raise NotImplementedError(f"policy condition operator {operator}")
    if value is None and plain != operator:
        return True
    negated, equal = _OPERATORS[plain]
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


def _arn(wanted: str, value: str) -> bool:
    """Part by part: a * of an ARN's part reaches no further than the part."""
    parts, others = wanted.split(":", 5), value.split(":", 5)
    return len(parts) == len(others) and all(map(_any, parts, others))


# Whether it asks for the contrary, and how it compares.
_OPERATORS: dict[str, tuple[bool, Callable[[str, str], bool]]] = {
    "StringEquals": (False, _equal),
    "StringNotEquals": (True, _equal),
    "StringLike": (False, _any),
    "StringNotLike": (True, _any),
    "StringEqualsIgnoreCase": (False, lambda wanted, value: _equal(wanted.lower(), value.lower())),
    "ArnEquals": (False, _arn),
    "ArnLike": (False, _arn),
    "ArnNotEquals": (True, _arn),
    "ArnNotLike": (True, _arn),
    "Bool": (False, lambda wanted, value: wanted.lower() == value.lower()),
}


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _text(given: Any) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)
