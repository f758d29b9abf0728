"""Client tokens: a repeated EC2 request has the effect and the response of the first.

Source: EC2 developer guide, "Ensuring idempotency in Amazon EC2 API requests"; the code IdempotentParameterMismatch:
API reference, "Error codes for the Amazon EC2 API". A failed request does not use its token: an assumption.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from rehearsal.aws.moto_extension import ec2_error

T = TypeVar("T")


def once_per_token(backend: Any, operation: str, parameters: dict[str, Any], act: Callable[[], T]) -> T:
    """Return the result of `act`, which is called once per client token of an operation.

    Raises EC2's error when an earlier request had the same token and other parameters.
    """
    token = str(parameters.get("ClientToken") or "")
    if not token:
        return act()
    requests: dict[tuple[str, str], tuple[dict[str, Any], T]] = vars(backend).setdefault("_client_tokens", {})
    earlier = requests.get((operation, token))
    if earlier is None:
        earlier = requests[operation, token] = parameters, act()
    if earlier[0] != parameters:
        message = f"The client token {token} was used with other parameters."
        raise ec2_error("IdempotentParameterMismatch", message)
    return earlier[1]
