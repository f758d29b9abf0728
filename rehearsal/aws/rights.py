"""The rights of roles: a call by a role's session is answered only if its policies allow all that the call needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rehearsal.aws.callers import CALLER, caller_of
from rehearsal.aws.needs import needs
from rehearsal.aws.operations import Call


@contextmanager
def rights(call: Call, environ: dict[str, Any], in_json: bool) -> Iterator[None]:
    """Around the answer to one call. Raises Refusal, and NotImplementedError where the rights can't be judged."""
    caller = caller_of(call, in_json)
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
