"""The keys of pydantic models, nested models included."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel

_BRACKETED = re.compile(r"\[\w+\]")


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models of a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def kind_of(model: type[BaseModel]) -> str:
    """Return the value of `kind` that selects the model in a union."""
    (kind,) = get_args(model.model_fields["kind"].annotation)
    return str(kind)


def key_path(location: Sequence[str | int]) -> list[str | int]:
    """The keys of pydantic's error location, without its own bracketed parts: `[key]` and union tags."""
    return [part for part in location if not _is_bracketed(part)]


def known_keys(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    """Return the keys of the object at pydantic's error location in `model`; none where it is no model."""
    models = [model]
    for part in location:
        if _is_bracketed(part):  # a union tag
            models = [each for each in models if f"[{kind_of(each)}]" == part]
        elif not isinstance(part, int):  # an item of a list has the models of the list's field
            fields = [each.model_fields[part] for each in models if part in each.model_fields]
            models = [child for field in fields for child in models_in(field.annotation)]
    return {key for each in models for key in each.model_fields}


def paths_of_key(model: type[BaseModel], key: str) -> list[str]:
    """Return the dotted paths in `model` of all fields with the name `key`, without items of lists and mappings."""
    paths = [key] if key in model.model_fields else []
    for name, field in model.model_fields.items():
        children = {id(child): child for child in models_in(field.annotation)}.values()
        below = {path for child in children for path in paths_of_key(child, key)}
        paths += [f"{name}.{path}" for path in sorted(below)]
    return paths


def _is_bracketed(part: str | int) -> bool:
    return isinstance(part, str) and _BRACKETED.fullmatch(part) is not None
