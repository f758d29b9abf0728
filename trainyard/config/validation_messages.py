"""Pydantic's errors in our own words: what is wrong with a value, and what to write instead."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wording:
    """`why` the value can't stand, and what to do about it: `fix` is followed by the place where."""

    why: str
    fix: str = "Change it"


_WHOLE = Wording("not a whole number", "Write one such as 2")
_NUMBER = Wording("not a number", "Write one such as 2.5")
_TRUTH = Wording("neither true nor false", "Write true or false")
_TEXT = Wording("not text", "Write text, in quotes where YAML would take it for something else,")
_LIST = Wording("not a list", "Write a list such as [a, b]")
_OBJECT = Wording("not an object with keys of its own", "Write its keys below it, or {} where it has none,")
_RANGE = Wording("not an IPv4 range in which only network bits are set", "Write one such as 10.42.0.0/16")
# By pydantic's type of error; braces take what its context holds.
WORDINGS = {
    "extra_forbidden": Wording("no such key", "Remove it, or spell it as docs/settings.md does,"),
    "missing": Wording("it is missing", "Add it, as docs/settings.md describes it,"),
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": Wording("not a finite number", "Write one such as 2.5"),
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "string_type": _TEXT,
    "tuple_type": _LIST,
    "string_pattern_mismatch": Wording("not of the form {pattern}"),
    "too_short": Wording("too short: it needs {min_length} at least", "Add to it"),
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "ip_v4_network": _RANGE,
    "union_tag_invalid": Wording("not one of {expected_tags}", "Write one of these"),
    "literal_error": Wording("not one of {expected}", "Write one of these"),
    "greater_than": Wording("must be greater than {gt:g}", "Write a larger one"),
    "greater_than_equal": Wording("must be {ge:g} or more", "Write a larger one"),
    "less_than": Wording("must be less than {lt:g}", "Write a smaller one"),
    "less_than_equal": Wording("must be {le:g} or less", "Write a smaller one"),
}


def spelled(pattern: str, words: str) -> Callable[[str], str]:
    """A check of how a text is spelled, which tells its rule in words."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {words}")
        return value

    return check


def in_words(item: Mapping[str, Any]) -> Wording:
    """One entry of ValidationError.errors(). What has no wording of ours, such as a validator's own, keeps its text."""
    known = WORDINGS.get(item["type"])
    if known is None:
        return Wording(str(item["msg"]).removeprefix("Value error, ").rstrip("."))
    why = known.why.format_map(item.get("ctx", {}))
    if item["type"] == "union_tag_invalid":
        why = why.translate({ord("["): None, ord("]"): None})  # trainyard.base.place_of says what they are for
    return Wording(why, known.fix)
