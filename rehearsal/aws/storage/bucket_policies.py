"""Bucket policies with conditions: moto 5.2.5 applies a Deny statement even if its conditions do not match."""

from contextlib import suppress
from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket

from rehearsal.aws.iam.callers import CALLER, principal_context
from rehearsal.aws.iam.policies import AccessRequest, Principal, account_principals, evaluate_policies
from rehearsal.aws.iam.required_actions_s3 import s3_action
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.process import ACCOUNT

_RESULTS = {"Allow": PermissionResult.PERMITTED, "Deny": PermissionResult.DENIED, None: PermissionResult.NEUTRAL}
# Principal of a call with a key that belongs to no role.
_ACCOUNT_ROOT = Principal(account_principals(ACCOUNT))
_ROOT_CONTEXT = principal_context(f"arn:aws:iam::{ACCOUNT}:root")


def install() -> None:
    """Evaluate bucket policies with rehearsal.aws.iam.policies instead of moto."""

    def get_permission(self: Any, action: str, resource: str) -> Any:
        caller = CALLER.get()
        # moto passes the operation: HeadObject, for example, requires s3:GetObject.
        with suppress(KeyError):
            action = s3_action(action.removeprefix("s3:"))
        request = AccessRequest(action, resource, caller.context if caller else _ROOT_CONTEXT)
        # DeleteObjects reports a denial per key.
        if caller is not None and caller.call.operation == "DeleteObjects" and not caller.is_allowed(request):
            return PermissionResult.DENIED
        principal = caller.principal if caller else _ACCOUNT_ROOT
        return _RESULTS[evaluate_policies([self.policy] if self.policy else [], request, principal)]

    extend(FakeBucket, get_permission)
