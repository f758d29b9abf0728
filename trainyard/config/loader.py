"""A stack's settings from what its file says: types and keys, and the rules across fields, all told at once."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainyard.base import CONFIG_KEY, InputError, Problem, place_of, problems_of
from trainyard.config.settings import StackSettings
from trainyard.config.validators import problems_across

_STAND_INS: dict[str, Any] = {"instance_type": "t3.medium", "nodes": 1, "job": {"name": "none", "dataset": "none"}}


def read_settings(raw: Any, root: Path, source: str) -> StackSettings:
    """Validate what stands under `trainyard:cluster`. `root` is Pulumi.yaml's folder, `source` names the stack file.

    Raises InputError with every problem: of types and keys, and of the rules across fields that can be judged.
    """
    if not isinstance(raw, Mapping):
        why = "the stack file has no such object" if raw is None else "must be an object"
        raise InputError(
            [Problem(key=CONFIG_KEY, value=raw, why=why, fix=f"Describe the cluster under it in {source}")]
        )
    try:
        settings = StackSettings.model_validate(raw)
    except ValidationError as error:
        problems = problems_of(error, CONFIG_KEY, source)
        raise InputError([*problems, *_beside(raw, error, root)]) from None
    if problems := problems_across(settings, root):
        raise InputError(problems)
    return settings


def _beside(raw: Mapping[str, Any], error: ValidationError, root: Path) -> list[Problem]:
    """What the rules find in the rest, once what could not be read is left out.

    Where an object can't stand without what was left out it goes too, and counts as unread; what every stack must have
    gets a stand-in.
    """
    rest, unread = copy.deepcopy(dict(raw)), _places(error)
    while True:
        for place in unread:
            _take_out(rest, place)
        try:
            settings = StackSettings.model_validate(_whole(rest))
        except ValidationError as left:
            more = [place for place in _around(left) if place not in unread]
            if not more:
                return []
            unread += more
        else:
            return problems_across(settings, root, [".".join(str(part) for part in place) for place in unread])


def _places(error: ValidationError) -> list[list[str | int]]:
    return [place_of(item["loc"]) for item in error.errors(include_url=False)]


def _around(error: ValidationError) -> list[list[str | int]]:
    """Where a key is missing, the object that misses it."""
    kinds = [item["type"] for item in error.errors(include_url=False)]
    return [place[:-1] if kind == "missing" else place for place, kind in zip(_places(error), kinds, strict=True)]


def _whole(rest: Mapping[str, Any]) -> dict[str, Any]:
    """With a stand-in for each key that a stack can't be without."""
    return {**_STAND_INS, **rest, "job": {**_STAND_INS["job"], **rest.get("job", {})}}


def _take_out(rest: Any, place: Sequence[str | int]) -> None:
    """Remove a value; of a list, the whole list."""
    for number, part in enumerate(place):
        if not isinstance(rest, dict) or part not in rest:
            return
        if number == len(place) - 1 or not isinstance(rest[part], dict):
            del rest[part]
            return
        rest = rest[part]
