"""Numbers that a user writes: YAML's true and .inf, which Python would take for some, are none."""

from typing import Annotated, Any

from pydantic import AllowInfNan, BeforeValidator
from pydantic_core import PydanticCustomError


def _no_truth(kind: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError(kind, "a truth value")
        return value

    return BeforeValidator(check)


Whole = Annotated[int, _no_truth("int_type")]
Number = Annotated[float, _no_truth("float_type"), AllowInfNan(False)]
