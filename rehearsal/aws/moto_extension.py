"""Extension of moto: functions are set on its classes before the server starts."""

from collections.abc import Callable
from typing import Any

from moto.ec2.exceptions import EC2ClientError


def extend(owner: type, *functions: Callable[..., Any] | property, **named: Any) -> None:
    """Set attributes of a moto class: `functions` under their `__name__`, `named` under the keyword."""
    for function in functions:
        setattr(owner, function.__name__, function)  # type: ignore[union-attr]
    for name, value in named.items():
        setattr(owner, name, value)


def ec2_error(code: str, message: str) -> EC2ClientError:
    """Return EC2's error with this code, to be raised."""
    return EC2ClientError(code, message)
