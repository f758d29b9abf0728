"""How moto is extended from outside: functions set on its classes, before the server starts."""

from collections.abc import Callable
from typing import Any

from moto.ec2.exceptions import EC2ClientError


def extend(owner: type, *functions: Callable[..., Any] | property, **named: Any) -> None:
    """Set functions on a class of moto under their own names, or under the names given."""
    for function in functions:
        setattr(owner, function.__name__, function)  # type: ignore[union-attr]
    for name, value in named.items():
        setattr(owner, name, value)


def refuse(code: str, message: str) -> EC2ClientError:
    """EC2's refusal with this error code."""
    return EC2ClientError(code, message)
