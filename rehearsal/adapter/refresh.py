"""Refresh: the inputs of a resource, with the values that AWS has now in place of those that differ in meaning."""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from rehearsal.adapter.handler import HandlerCall, InputKeys

_AWS_TAG_PREFIX = "aws:"  # tags that AWS sets itself


def refresh_inputs(
    keys: InputKeys, inputs: Mapping[str, Any], current: Mapping[str, Any], unreported: Collection[str] = ()
) -> dict[str, Any]:
    """Return `inputs` with the values of `current` (input key -> value in AWS) where they differ in meaning.

    `keys`: the inputs that the handler supports. `unreported`: those that AWS never reports, which are kept. Other
    inputs that `current` does not have were removed in AWS. Values that the program does not set are ignored, as
    pulumi-aws does; a tag added by hand is a difference.
    """
    expected = {"tags": {}, **inputs} if current.get("tags") and keys.get("tags", ...) is None else inputs
    refreshed = {}
    for key, value in expected.items():
        if key in current:
            refreshed[key] = _refresh(keys.get(key), value, current[key])
        elif key in unreported or value in ("", None, [], {}):
            refreshed[key] = value
    return refreshed


def supported_inputs(keys: InputKeys, current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `current` that the handler supports as inputs, nested ones too."""
    return {key: _supported(keys[key], value) for key, value in current.items() if key in keys}


def tag_dict(tags: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    """Return the tags of a response, a list of Key and Value, as the input `tags`; without those that AWS sets."""
    return {tag["Key"]: tag["Value"] for tag in tags or () if not tag["Key"].startswith(_AWS_TAG_PREFIX)}


def describe(call: HandlerCall, operation: str, result: str, name: str, value: str = "") -> dict[str, Any] | None:
    """Return the EC2 resource that an operation such as `describe_vpcs` lists under `result`; None without one.

    `name` and `value`: the filter, such as `vpc-id`, and its value, by default `call.id`. A filter is no error where
    the resource does not exist.
    """
    ec2 = call.aws.client("ec2")
    members = ec2.meta.service_model.operation_model(ec2.meta.method_to_api_mapping[operation]).input_shape.members
    argument = "Filters" if "Filters" in members else "Filter"
    resources = getattr(ec2, operation)(**{argument: [{"Name": name, "Values": [value or call.id]}]})[result]
    return resources[0] if resources else None


def select(description: Mapping[str, Any], /, **api_names: str) -> dict[str, Any]:
    """Return the fields that a description has under the inputs' names. `api_names`: input key -> API name."""
    return {key: description[api] for key, api in api_names.items() if api in description}


def to_input_names(value: Any, /, **special: str) -> Any:
    """Return a description under the inputs' names, nested ones included: the same with a small first letter.

    `special`: API name -> input key, for other spellings.
    """
    if isinstance(value, Mapping):
        return {
            special.get(key, key[0].lower() + key[1:]): to_input_names(item, **special) for key, item in value.items()
        }
    return [to_input_names(item, **special) for item in value] if isinstance(value, list) else value


def _refresh(keys: InputKeys | None, value: Any, current: Any) -> Any:
    """Return the refreshed value of one input. `keys`: those of an object, or of a list of objects."""
    if keys is None:
        return value if _canonical(value) == _canonical(current) else current
    if isinstance(value, Mapping) and isinstance(current, Mapping):
        return refresh_inputs(keys, value, current)
    if isinstance(value, list) and isinstance(current, list) and _same_items(keys, value, current):
        return value
    return _supported(keys, current)


def _same_items(keys: InputKeys, items: list[Any], current: list[Any]) -> bool:
    """Return whether the objects are the same in any order."""
    remaining = list(current)
    for item in items:
        match = next((other for other in remaining if refresh_inputs(keys, item, other) == item), None)
        if match is None:
            return False
        remaining.remove(match)
    return not remaining


def _supported(keys: InputKeys | None, value: Any) -> Any:
    if keys is None:
        return value
    if isinstance(value, Mapping):
        return supported_inputs(keys, value)
    return [_supported(keys, item) for item in value] if isinstance(value, list) else value


def _canonical(value: Any) -> Any:
    """Return the same for values that AWS treats alike: JSON by its content, lists in any order, text as its value."""
    if isinstance(value, list):
        return sorted(map(_canonical, value), key=repr)
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            return json.loads(value)
    if value in ("true", "false"):  # the provider's three-valued booleans are strings
        return value == "true"
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(value)
    return value
