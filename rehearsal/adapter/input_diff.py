"""Difference between the old and the new inputs of a resource, by property path."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

PropertyPath = tuple[str | int, ...]
ChangeKind = Literal["add", "delete", "update"]
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def diff_inputs(old_inputs: Mapping[str, Any], new_inputs: Mapping[str, Any]) -> dict[PropertyPath, ChangeKind]:
    """Return every value that differs. Lists are compared by index, also those that AWS treats as sets."""
    before, after = dict(_flatten(old_inputs)), dict(_flatten(new_inputs))
    differences: dict[PropertyPath, ChangeKind] = {}
    for path in [*before, *(path for path in after if path not in before)]:
        if path not in after:
            differences[path] = "delete"
        elif path not in before:
            differences[path] = "add"
        elif before[path] != after[path]:
            differences[path] = "update"
    return differences


def _flatten(value: Any, path: PropertyPath = ()) -> Iterator[tuple[PropertyPath, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _flatten(item, (*path, index))
    elif path:
        yield path, value


def is_at_or_below(path: PropertyPath, keys: Iterable[str]) -> bool:
    """Return whether the path, without list indexes, equals one of the dotted keys or is nested in one."""
    names = [part for part in path if isinstance(part, str)]
    return any(names[: len(parts)] == parts for parts in (key.split(".") for key in keys))


def format_path(path: PropertyPath) -> str:
    """Return a property path in the Pulumi engine's syntax, such as `rules[0].filter.tags["a:b"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _IDENTIFIER.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text
