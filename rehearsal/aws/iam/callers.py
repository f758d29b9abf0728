"""Who makes a call: a session of a role of the account, which may what its policies say. Any other may do all."""

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from rehearsal.aws.iam.policies import Ask, Verdict, Who, account_of, judge
from rehearsal.aws.injection import Refusal, forbidden
from rehearsal.aws.lookup import bucket_of
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.key_policies import by_key
from rehearsal.aws.storage.keys import find_key

_OF_NO_SERVICE = dict.fromkeys(["aws:sourcearn", "aws:sourceaccount", "aws:sourceowner"])


class Caller:
    """A session of a role, and the call that it makes."""

    def __init__(self, call: Call, in_json: bool, session: Any) -> None:
        self.call = call
        self._in_json, self._arn, self._role_arn = in_json, session.arn, session.role_arn
        self.role = str(session.role_arn).rpartition("/")[2]
        self._policies = list(_policies(session, self.role))
        self._boundary = _boundary(session, self.role)

    def may(self, ask: Ask) -> bool:
        """Whether one of the policies allows it, the role's or the resource's, none denies it, and its boundary too."""
        return self._lacks(ask) is None

    def require(self, ask: Ask) -> None:
        """Raises Refusal, as AWS words it, unless the caller may."""
        why = self._lacks(ask)
        if why is None:
            return
        on = f" on resource: {ask.resource}" if ask.resource else ""
        message = f"User: {self._arn} is not authorized to perform: {ask.action}{on} {why}"
        raise forbidden(self.call, self._in_json, message)

    def _lacks(self, ask: Ask) -> str | None:
        """Why it may not, in AWS's words.

        A boundary gives no right, and takes those that it does not give too:
        https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
        """
        ask = ask.also({"aws:principalarn": self._role_arn, "aws:principalaccount": ACCOUNT, **_OF_NO_SERVICE})
        own, bound = judge(self._policies, ask), judge(self._boundary, ask) if self._boundary else "Allow"
        key, resource = _key_of(ask), self._resources(ask)
        given = by_key(key, ask, self.who, own) if key else resource or own
        if "Deny" in (own, bound, given):
            return "with an explicit deny" + (" in a permissions boundary" if bound == "Deny" else "")
        if given != "Allow":
            policy = "resource-based" if key and own == "Allow" else "identity-based"
            return f"because no {policy} policy allows the {ask.action} action"
        return None if bound == "Allow" else f"because no permissions boundary allows the {ask.action} action"

    @property
    def who(self) -> Who:
        """As a resource's policy may name it."""
        return Who(frozenset([self._role_arn, self._arn]), account=account_of(ACCOUNT))

    def _resources(self, ask: Ask) -> Verdict:
        """What the policy of the bucket says, where the ask is about one."""
        if ask.action.startswith("s3:") and ask.resource:
            bucket = bucket_of(ask.resource.removeprefix("arn:aws:s3:::").partition("/")[0])
            if bucket is not None and bucket.policy:
                return judge([bucket.policy], ask, self.who)
        return None


def _key_of(ask: Ask) -> Any:
    return find_key(ACCOUNT, "", ask.resource) if ask.resource and ask.resource.startswith("arn:aws:kms:") else None


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
    """The role's documents as they are now; none once it is deleted. Raises NotImplementedError for others beside."""
    if session.policy:
        raise NotImplementedError("a policy of the session's own")
    roles = iam_backends[session.account_id][session.partition].roles
    role = next((role for role in list(roles.values()) if role.name == name), None)
    if role is None:
        return
    yield from list(role.policies.values())
    yield from map(_document, list(role.managed_policies.values()))


def _boundary(session: Any, name: str) -> list[str]:
    """The policy that bounds the role, if any. One that is gone allows nothing."""
    backend = iam_backends[session.account_id][session.partition]
    role = next((role for role in list(backend.roles.values()) if role.name == name), None)
    arn = role.permissions_boundary_arn if role else None
    if not arn:
        return []
    policy = backend.managed_policies.get(arn)
    return [_document(policy) if policy else '{"Statement": []}']


def _document(policy: Any) -> str:
    """As its default version has it."""
    return next(str(one.document) for one in policy.versions if one.version_id == policy.default_version_id)
