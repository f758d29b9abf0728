"""Convert pydantic's validation errors into problems with a reason and a fix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from trainyard.config import CONFIG_KEY
from trainyard.config.model_fields import key_path, known_keys, paths_of_key
from trainyard.errors import Problem, did_you_mean

_SUGGESTED_PATHS = 3


@dataclass(frozen=True)
class Message:
    """The reason why a value is invalid, and the fix. The file name follows the fix."""

    reason: str
    fix: str = "Change it"


_INTEGER = Message("not an integer", "Write an integer such as 2")
_NUMBER = Message("not a number", "Write a number such as 2.5")
_BOOLEAN = Message("neither true nor false", "Write true or false")
_STRING = Message("not a string", "Write a string, in quotes where YAML would parse another type,")
_LIST = Message("not a list", "Write a list such as [a, b]")
_MAPPING = Message("not a mapping", "Write its keys below it, or {} for none,")
_CIDR = Message("not an IPv4 CIDR block without host bits", "Write a block such as 10.42.0.0/16")
# By pydantic's error type. Braces are filled from the error's context.
MESSAGES = {
    "extra_forbidden": Message("unknown key", "Remove it, or use a key of docs/stack-reference.md,"),
    "missing": Message("required key is missing", "Add it, see docs/stack-reference.md,"),
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_from_float": _INTEGER,
    "int_parsing_size": _INTEGER,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": Message("not a finite number", "Write a number such as 2.5"),
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "string_type": _STRING,
    "tuple_type": _LIST,
    "string_pattern_mismatch": Message("does not match {pattern}"),
    "string_too_short": Message("has fewer than {min_length} characters"),
    "too_short": Message("has fewer than {min_length} entries", "Add an entry"),
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "ip_v4_network": _CIDR,
    "union_tag_invalid": Message("not one of {expected_tags}", "Write one of these values"),
    "literal_error": Message("not one of {expected}", "Write one of these values"),
    "greater_than": Message("must be greater than {gt:g}", "Increase it"),
    "greater_than_equal": Message("must be {ge:g} or more", "Increase it"),
    "less_than": Message("must be less than {lt:g}", "Decrease it"),
    "less_than_equal": Message("must be {le:g} or less", "Decrease it"),
}


def invalid_setting(key: str, value: Any, reason: str, fix: str, code: str = "") -> Problem:
    """Return the problem of one setting. `key` is relative to the cluster's settings.

    A validator omits `code`: its caller sets the validator's name.
    """
    return Problem(f"{CONFIG_KEY}.{key}", value, reason, fix, code)


def problems_from(
    error: ValidationError, prefix: str, source: str, model: type[BaseModel] | None = None
) -> list[Problem]:
    """Convert each of pydantic's errors. `prefix` is the key of the validated object in `source`, a file name.

    `model`: the model of that object, from which the message of an unknown key suggests similar keys.
    """
    problems = []
    for item in error.errors(include_url=False):
        path: list[str | int] = key_path(item["loc"])
        value: Any = None if item["type"] in ("missing", "credential_in_uri") else item["input"]
        for part in filter(None, item.get("ctx", {}).get("key", "").split(".")):  # of `validation_error`
            path, value = [*path, part], value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict) and item["type"] not in MESSAGES:
            value = None  # the reason of a validator of an object names its keys
        if item["type"] == "union_tag_invalid":  # `kind` discriminates all our unions
            path, value = [*path, "kind"], value["kind"]
        key = ".".join([prefix, *(str(part) for part in path)])
        message = message_of(item)
        fix = f"{message.fix} in {source}"
        if item["type"] == "extra_forbidden" and model is not None:
            *above, unknown = item["loc"]
            fix = _suggestion(model, above, str(unknown)) + fix
        problems.append(Problem(key, value, message.reason, fix, item["type"]))
    return problems


def _suggestion(model: type[BaseModel], above: Sequence[str | int], unknown: str) -> str:
    """Return the start of the fix for an unknown key: a similar key at its place, else the places of its name."""
    if similar := did_you_mean(unknown, known_keys(model, above)):
        return similar
    own = ".".join(str(part) for part in key_path([*above, unknown]))  # of another model of a union
    paths = [path for path in paths_of_key(model, unknown) if path != own]
    return f"Did you mean {' or '.join(paths)}? " if 0 < len(paths) <= _SUGGESTED_PATHS else ""


def message_of(item: Mapping[str, Any]) -> Message:
    """Return the message of one entry of ValidationError.errors(). A validator's own text is kept."""
    message = MESSAGES.get(item["type"])
    if message is None:
        return Message(str(item["msg"]).removeprefix("Value error, ").rstrip("."))
    reason = message.reason.format_map(item.get("ctx", {}))
    if item["type"] == "union_tag_invalid":
        reason = reason.translate({ord("["): None, ord("]"): None})  # union tags are in brackets, see key_path
    return Message(reason, message.fix)
