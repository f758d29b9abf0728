"""Generate the reference of stack settings: `python -m tools.docs.stack_reference > docs/settings.md`."""

import sys
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainyard.base import CONFIG_KEY
from trainyard.config.settings import StackSettings

_INTRO = f"""# Settings of a stack

All of them stand under `{CONFIG_KEY}` in `stacks/Pulumi.<stack>.yaml`. Keys that are not listed here are refused.
This page is made from `trainyard/config/settings/`: `python -m tools.docs.stack_reference > docs/settings.md`.
"""


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def type_text(annotation: Any) -> str:
    if annotation is NoneType:
        return "none"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(args[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_text(part) for part in args))
    if origin is tuple:
        return f"list of {type_text(args[0])}"
    if origin is dict:
        return f"map of {type_text(args[0])} to {type_text(args[1])}"
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "IPv4Network": "IPv4 range"}
    names["JsonValue"] = "any value"
    return "object" if models_in(annotation) else names.get(annotation.__name__, annotation.__name__)


def default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, tuple):
        return f"`{list(field.default)}`"
    return "none" if field.default is None else f"`{field.default}`"


def rows(model: type[BaseModel], prefix: str = "", kind: str = "") -> list[str]:
    """One table row a key, the keys of an object below its own row. Where objects of several kinds may stand, each
    key bears its `kind`."""
    found = []
    for name, field in model.model_fields.items():
        key, of = f"{prefix}{name}", f", {kind}" if kind else ""
        found.append(f"| `{key}`{of} | {type_text(field.annotation)} | {default_text(field)} | {field.description} |")
        several = models_in(field.annotation)
        for below in several:
            found += rows(below, f"{key}.", kind_of(below) if len(several) > 1 else kind)
    return found


def kind_of(model: type[BaseModel]) -> str:
    """What its key `kind` must say."""
    (said,) = get_args(model.model_fields["kind"].annotation)
    return str(said)


def reference() -> str:
    """The whole page, as Markdown."""
    head = ["| key | type | default | what it is |", "| --- | --- | --- | --- |"]
    return "\n".join([_INTRO, *head, *rows(StackSettings)]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
