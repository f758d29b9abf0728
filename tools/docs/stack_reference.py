"""Generate the reference of stack settings: `python -m tools.docs.stack_reference > docs/stack-reference.md`."""

import sys
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainyard.config import CONFIG_KEY
from trainyard.config.model_fields import kind_of, models_in
from trainyard.config.settings import StackSettings

_INTRO = f"""# Stack reference

Every key of `{CONFIG_KEY}` in the stack file `Pulumi.<stack>.yaml`. Unknown keys are refused.
`python -m tools.docs.stack_reference > docs/stack-reference.md` generates this page from `trainyard/config/settings/`.
A key without a value, or with `null`, is not set.
"""


def type_text(annotation: Any) -> str:
    """Return the type of a field as text."""
    if annotation is NoneType:
        return "null"
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
    names = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "IPv4Network": "IPv4 CIDR block"}
    names["JsonValue"] = "any value"
    return "object" if models_in(annotation) else names.get(annotation.__name__, annotation.__name__)


def default_text(field: FieldInfo) -> str:
    """Return the default of a field as text."""
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, tuple):
        return f"`{list(field.default)}`"
    return "`null`" if field.default is None else f"`{field.default}`"


def rows(model: type[BaseModel], prefix: str = "", kind: str = "") -> list[str]:
    """Return one table row for each key, nested keys included. Keys of a union's model are followed by its `kind`."""
    result = []
    for name, field in model.model_fields.items():
        key, suffix = f"{prefix}{name}", f", {kind}" if kind else ""
        result.append(
            f"| `{key}`{suffix} | {type_text(field.annotation)} | {default_text(field)} | {field.description} |"
        )
        models = models_in(field.annotation)
        for child in models:
            result += rows(child, f"{key}.", kind_of(child) if len(models) > 1 else kind)
    return result


def reference() -> str:
    """Return the page as Markdown."""
    head = ["| key | type | default | description |", "| --- | --- | --- | --- |"]
    return "\n".join([_INTRO, *head, *rows(StackSettings)]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
