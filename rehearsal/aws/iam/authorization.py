"""The rights of roles: a call by a role's session is answered only if its policies allow all that the call needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rehearsal.aws.iam.callers import CALLER, Caller
from rehearsal.aws.iam.required_actions import needs
from rehearsal.aws.operations import Call


@contextmanager
def rights(caller: Caller | None, call: Call, environ: dict[str, Any]) -> Iterator[None]:
    """Around the answer to one call; without a caller all is allowed.

    Raises Refusal, and NotImplementedError where the rights can't be judged.
    """
    if caller is None:
        yield
        return
    for ask in needs(call, environ, environ["wsgi.input"].getvalue()):
        caller.require(ask)
    token = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(token)
