"""Who makes a call: a session of a role of the account, which may what its policies say. Any other may do all."""

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from rehearsal.aws.injection import Refusal, forbidden
from rehearsal.aws.lookup import bucket_of
from rehearsal.aws.operations import Call
from rehearsal.aws.policies import Ask, Verdict, judge
from rehearsal.aws.process import ACCOUNT


class Caller:
    """A session of a role, and the call that it makes."""

    def __init__(self, call: Call, in_json: bool, session: Any) -> None:
        self.call = call
        self._in_json, self._arn = in_json, session.arn
        self.role = str(session.role_arn).rpartition("/")[2]
        self._policies = list(_policies(session, self.role))

    def may(self, ask: Ask) -> bool:
        """Whether one of the policies allows it, the role's or the bucket's, and none denies it."""
        return self._verdict(ask) == "Allow"

    def require(self, ask: Ask) -> None:
        """Raises Refusal, as AWS words it, unless the caller may."""
        verdict = self._verdict(ask)
        if verdict == "Allow":
            return
        none = f"because no identity-based policy allows the {ask.action} action"
        why = none if verdict is None else "with an explicit deny"
        on = f" on resource: {ask.resource}" if ask.resource else ""
        message = f"User: {self._arn} is not authorized to perform: {ask.action}{on} {why}"
        raise forbidden(self.call, self._in_json, message)

    def _verdict(self, ask: Ask) -> Verdict:
        documents = [*self._policies]
        if ask.action.startswith("s3:") and ask.resource:
            bucket = bucket_of(ask.resource.removeprefix("arn:aws:s3:::").partition("/")[0])
            if bucket is not None and bucket.policy:
                documents.append(bucket.policy)
        return judge(documents, ask)


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The role's session whose call is being answered."""


def caller_of(call: Call, in_json: bool) -> Caller | None:
    """The session of this account that signed the call, if any. Raises Refusal for a session that nobody was given."""
    if not (call.access_key or "").startswith("ASIA"):
        return None
    sessions: Any = sts_backends
    for account, _, backend in sessions.iter_backends():
        if session := backend.get_assumed_role_from_access_key(call.access_key):
            return Caller(call, in_json, session) if account == ACCOUNT else None  # another's rights are its own matter
    raise _unknown(call, in_json)


def _unknown(call: Call, in_json: bool) -> Refusal:
    """The answer to a key that AWS did not give out, as each protocol has it."""
    invalid = "The security token included in the request is invalid."
    if call.service == "s3":
        message = "The AWS Access Key Id you provided does not exist in our records."
        return Refusal("403 Forbidden", "InvalidAccessKeyId", message)
    if call.service == "ec2":
        message = "AWS was not able to validate the provided access credentials"
        return Refusal("401 Unauthorized", "AuthFailure", message)
    if in_json:
        return Refusal("400 Bad Request", "UnrecognizedClientException", invalid)
    return Refusal("403 Forbidden", "InvalidClientTokenId", invalid)


def _policies(session: Any, name: str) -> Iterator[str]:
    """The role's documents as they are now; none once it is deleted. Raises NotImplementedError for other bounds."""
    if session.policy:
        raise NotImplementedError("a policy of the session's own")
    roles = iam_backends[session.account_id][session.partition].roles
    role = next((role for role in list(roles.values()) if role.name == name), None)
    if role is None:
        return
    if role.permissions_boundary_arn:
        raise NotImplementedError(f"the permissions boundary of the role {name}")
    yield from list(role.policies.values())
    for policy in list(role.managed_policies.values()):
        yield next(one.document for one in policy.versions if one.version_id == policy.default_version_id)
