"""Bucket policies with their conditions: moto 5.2.5 denies whatever a Deny statement names, condition or not."""

from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket

from rehearsal.aws.extension import extend
from rehearsal.aws.iam.callers import CALLER
from rehearsal.aws.iam.policies import Ask, Who, account_of, judge
from rehearsal.aws.process import ACCOUNT

_RESULTS = {"Allow": PermissionResult.PERMITTED, "Deny": PermissionResult.DENIED, None: PermissionResult.NEUTRAL}
# Whoever signs with a key of no role: the account itself.
_OPERATOR = Who(account_of(ACCOUNT))


def install() -> None:
    def get_permission(self: Any, action: str, resource: str) -> Any:
        caller, ask = CALLER.get(), Ask(action, resource)
        # S3 answers this one key by key.
        if caller is not None and caller.call.operation == "DeleteObjects" and not caller.may(ask):
            return PermissionResult.DENIED
        who = caller.who if caller else _OPERATOR
        return _RESULTS[judge([self.policy] if self.policy else [], ask, who)]

    extend(FakeBucket, get_permission)
