"""What differs between two sets of inputs, by path."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

Changed = tuple[str | int, ...]
Kind = Literal["add", "delete", "update"]
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def changes(olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[Changed, Kind]:
    """Every value that differs. Lists are compared place by place, those too that AWS takes for sets."""
    before, after = dict(_leaves(olds)), dict(_leaves(news))
    found: dict[Changed, Kind] = {}
    for path in [*before, *(path for path in after if path not in before)]:
        if path not in after:
            found[path] = "delete"
        elif path not in before:
            found[path] = "add"
        elif before[path] != after[path]:
            found[path] = "update"
    return found


def _leaves(value: Any, path: Changed = ()) -> Iterator[tuple[Changed, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            yield from _leaves(item, (*path, place))
    elif path:
        yield path, value


def stands_under(path: Changed, keys: Iterable[str]) -> bool:
    """Whether the path is one of the dotted keys, places in lists left out, or lies below one."""
    names = [part for part in path if isinstance(part, str)]
    return any(names[: len(parts)] == parts for parts in (key.split(".") for key in keys))


def shown(path: Changed) -> str:
    """A path as the engine writes it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text
