"""The caller of an API call: a role session, whose policies are evaluated, or another caller, who may do everything."""

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from rehearsal.aws.active_faults import ApiError, forbidden
from rehearsal.aws.ec2.request_paths import RequestPath, instance_path, internet_path
from rehearsal.aws.iam.policies import AccessRequest, Decision, Principal, account_principals, evaluate_policies
from rehearsal.aws.lookup import find_bucket
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.key_policies import evaluate_key_policy
from rehearsal.aws.storage.keys import find_key

_NO_SOURCE_CONTEXT = dict.fromkeys(["aws:sourcearn", "aws:sourceaccount", "aws:sourceowner"])


def principal_context(arn: str) -> dict[str, str | None]:
    """Return the condition keys of a principal of this account: for a role session, the ARN of the role."""
    return {"aws:principalarn": arn, "aws:principalaccount": ACCOUNT, **_NO_SOURCE_CONTEXT}


class Caller:
    """A role session and its call.

    `path`: of the request; None if it is unknown, so that a policy that depends on it raises an error.
    """

    def __init__(self, call: Call, in_json: bool, session: Any, path: RequestPath | None) -> None:
        self.call = call
        self._path = path
        self._in_json, self._arn = in_json, session.arn
        self.role = str(session.role_arn).rpartition("/")[2]
        self._session_policies = [session.policy] if session.policy else []
        # The hypervisor knows the name of a role only; its ARN has a path.
        existing = _find_role(iam_backends[session.account_id][session.partition], self.role)
        self._role_arn = str(existing.arn if existing else session.role_arn)
        self._policies = list(role_policies(iam_backends[session.account_id][session.partition], self.role))
        self._boundary = _boundary(session, self.role)

    def is_allowed(self, request: AccessRequest) -> bool:
        """Return whether the policies of the role or the resource, and the permissions boundary, allow the request."""
        return self._denial_reason(request) is None

    def require(self, request: AccessRequest) -> None:
        """Raise ApiError with AWS's message unless the request is allowed."""
        reason = self._denial_reason(request)
        if reason is None:
            return
        on = f" on resource: {request.resource}" if request.resource else ""
        message = f"User: {self._arn} is not authorized to perform: {request.action}{on} {reason}"
        raise forbidden(self.call, self._in_json, message)

    def _denial_reason(self, request: AccessRequest) -> str | None:
        """Return AWS's reason for a denial; None if the request is allowed.

        A boundary or a session policy allows nothing by itself and denies all other requests. Sources:
        https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
        https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies.html#policies_session
        """
        network = self._path.context if self._path else {}
        request = request.with_context({**self.context, "aws:viaawsservice": "false", **network})
        if not self._endpoint_allows(request):
            return f"because no VPC endpoint policy allows the {request.action} action"
        identity = evaluate_policies(self._policies, request)
        boundary = evaluate_policies(self._boundary, request) if self._boundary else "Allow"
        session = evaluate_policies(self._session_policies, request) if self._session_policies else "Allow"
        key, resource = _requested_key(request), self._bucket_policy_decision(request)
        combined = evaluate_key_policy(key, request, self.principal, identity) if key else resource or identity
        if request.action == "sts:AssumeRole":
            combined = self._trust_policy_decision(request, identity)
        if "Deny" in (identity, boundary, session, combined):
            return "with an explicit deny" + (" in a permissions boundary" if boundary == "Deny" else "")
        if session != "Allow":
            return f"because no session policy allows the {request.action} action"
        if combined != "Allow":
            policy = "resource-based" if key and identity == "Allow" else "identity-based"
            return f"because no {policy} policy allows the {request.action} action"
        return None if boundary == "Allow" else f"because no permissions boundary allows the {request.action} action"

    def _endpoint_allows(self, request: AccessRequest) -> bool:
        """Return whether the policy of the VPC endpoint allows the request. It does not apply to calls of services.

        https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html
        """
        policy = self._path.endpoint_policy if self._path else None
        if policy is None or not request.action.startswith(f"{self.call.service}:"):
            return True
        return evaluate_policies([policy], request, self.principal) == "Allow"

    @property
    def context(self) -> dict[str, str | None]:
        """The condition keys of the principal."""
        return principal_context(self._role_arn)

    @property
    def principal(self) -> Principal:
        """The principal, as a resource policy may name it."""
        return Principal(frozenset([self._role_arn, self._arn]), account=account_principals(ACCOUNT))

    def _trust_policy_decision(self, request: AccessRequest, identity: Decision) -> Decision:
        """Return the decision on sts:AssumeRole. A trust policy for the account leaves it to the caller's policies.

        Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
        """
        backend = iam_backends[ACCOUNT]["aws"]
        role = next((role for role in list(backend.roles.values()) if role.arn == request.resource), None)
        if role is None:
            return None
        trust = role.assume_role_policy_document
        if decision := evaluate_policies([trust], request, self.principal):
            return decision
        account = evaluate_policies([trust], request, Principal(account_principals(ACCOUNT)))
        return identity if account == "Allow" else account

    def _bucket_policy_decision(self, request: AccessRequest) -> Decision:
        """Return the decision of the bucket policy for an S3 request; None for other requests."""
        if request.action.startswith("s3:") and request.resource:
            bucket = find_bucket(request.resource.removeprefix("arn:aws:s3:::").partition("/")[0])
            if bucket is not None and bucket.policy:
                return evaluate_policies([bucket.policy], request, self.principal)
        return None


def _requested_key(request: AccessRequest) -> Any:
    return (
        find_key(ACCOUNT, "", request.resource)
        if request.resource and request.resource.startswith("arn:aws:kms:")
        else None
    )


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The role session whose call is being processed; None for any other caller."""


def identify_caller(call: Call, in_json: bool, is_on_node: bool = False) -> Caller | None:
    """Return the role session of this account that signed the call, or None.

    `is_on_node`: the call arrived on the port for nodes, so it is from the instance after which EC2 names the session:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html#policy-vars-infotouse
    Raises ApiError for an unknown session, NoRouteError if no response reaches the instance.
    """
    if not (call.access_key or "").startswith("ASIA"):
        return None
    sessions: Any = sts_backends
    for account, _, backend in sessions.iter_backends():
        if session := backend.get_assumed_role_from_access_key(call.access_key):
            if account != ACCOUNT:
                return None  # not emulated for other accounts
            name = str(session.arn).rpartition("/")[2]
            path = instance_path(name, call.service, call.region) if is_on_node else internet_path()
            return Caller(call, in_json, session, path)
    raise unknown_key_error(call, in_json)


def unknown_key_error(call: Call, in_json: bool) -> ApiError:
    """Return the error for an unknown access key or session token, as each service reports it."""
    invalid = "The security token included in the request is invalid."
    if call.service == "s3":
        message = "The AWS Access Key Id you provided does not exist in our records."
        return ApiError("403 Forbidden", "InvalidAccessKeyId", message)
    if call.service == "ec2":
        message = "AWS was not able to validate the provided access credentials"
        return ApiError("401 Unauthorized", "AuthFailure", message)
    if in_json:
        return ApiError("400 Bad Request", "UnrecognizedClientException", invalid)
    return ApiError("403 Forbidden", "InvalidClientTokenId", invalid)


def role_policies(backend: Any, name: str) -> Iterator[str]:
    """Yield the role's current policy documents; none after its deletion. `backend`: moto's backend of IAM."""
    role = _find_role(backend, name)
    if role is None:
        return
    yield from list(role.policies.values())
    yield from map(_document, list(role.managed_policies.values()))


def _find_role(backend: Any, name: str) -> Any:
    """Return the role, or None. Role names are unique in an account, whatever their paths."""
    return next((role for role in list(backend.roles.values()) if role.name == name), None)


def _boundary(session: Any, name: str) -> list[str]:
    """Return the permissions boundary of the role in a list, if any. A deleted boundary policy allows nothing."""
    backend = iam_backends[session.account_id][session.partition]
    role = _find_role(backend, name)
    arn = role.permissions_boundary_arn if role else None
    if not arn:
        return []
    policy = backend.managed_policies.get(arn)
    return [_document(policy) if policy else '{"Statement": []}']


def _document(policy: Any) -> str:
    """Return the document of the policy's default version."""
    return next(str(version.document) for version in policy.versions if version.version_id == policy.default_version_id)
