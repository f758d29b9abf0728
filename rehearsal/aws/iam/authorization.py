"""Authorization of calls by role sessions: the role's policies must allow every action that the call requires."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rehearsal.aws.iam.callers import CALLER, Caller
from rehearsal.aws.iam.required_actions import required_requests
from rehearsal.aws.operations import Call


@contextmanager
def authorized(caller: Caller | None, call: Call, environ: dict[str, Any]) -> Iterator[None]:
    """Authorize a call and run its handler as `caller`; without a caller (not a role session) every call is allowed.

    Raises ApiError, and NotImplementedError if the authorization cannot be evaluated.
    """
    if caller is None:
        yield
        return
    for request in required_requests(call, environ, environ["wsgi.input"].getvalue()):
        caller.require(request)
    token = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(token)
