"""KMS keys: lookup by id, alias or ARN, validation of key policies, and deletion after the waiting period."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.iam.models import iam_backends
from moto.kms.models import KmsBackend, kms_backends

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.moto_extension import extend


def find_key(account: str, region: str, key: str) -> Any:
    """Return the key with this id, alias or ARN; None if it does not exist."""
    parts = key.split(":")
    keys = kms_backends[account][parts[3] if key.startswith("arn:") else region]
    try:
        return keys.keys.get(keys.any_id_to_key_id(key))
    except AttributeError:  # moto's reaction to an unknown alias
        return None


def install() -> None:
    """Accept a key's ARN like its id (moto checks it, then looks up the id only) and delete keys on schedule."""
    moto_create, moto_put_policy, moto_schedule_deletion = (
        KmsBackend.create_key,
        KmsBackend.put_key_policy,
        KmsBackend.schedule_key_deletion,
    )
    for name in ("enable_key", "disable_key", "cancel_key_deletion"):
        moto_operation = getattr(KmsBackend, name)

        def by_id(self: Any, key_id: str, operation: Callable[..., Any] = moto_operation) -> Any:
            return operation(self, self.get_key_id(key_id))

        extend(KmsBackend, **{name: by_id})

    def create_key(self: Any, policy: str | None, key_usage: str | None, *args: Any, **kwargs: Any) -> Any:
        validate_key_policy(self.account_id, policy)
        return moto_create(self, policy, key_usage or "ENCRYPT_DECRYPT", *args, **kwargs)

    def put_key_policy(self: Any, key_id: str, policy: str) -> None:
        validate_key_policy(self.account_id, policy)
        moto_put_policy(self, key_id, policy)

    def schedule_key_deletion(self: Any, key_id: str, pending_window_in_days: int) -> float | None:
        if (
            moto_schedule_deletion(self, self.get_key_id(key_id), pending_window_in_days) is None
        ):  # moto rejects the waiting period
            return None
        deletion_time = CLOCK.now() + pending_window_in_days * 86400
        self.keys[self.get_key_id(key_id)].deletion_date = datetime.fromtimestamp(deletion_time, UTC).replace(
            tzinfo=None
        )
        return deletion_time

    extend(KmsBackend, create_key, put_key_policy, schedule_key_deletion)
    CLOCK.add_source(_due_deletions)


def validate_key_policy(account: str, policy: str | None) -> None:
    """Raise KMS's error for a policy that is not JSON or that names roles or users that do not exist.

    Source: https://docs.aws.amazon.com/kms/latest/developerguide/key-policy-overview.html, and for the error
    https://docs.aws.amazon.com/kms/latest/APIReference/API_PutKeyPolicy.html. A service-linked role exists only after
    its service has created it: that of Auto Scaling, with the account's first group.
    """
    if not policy:  # KMS uses its default policy
        return
    try:
        statements = json.loads(policy)["Statement"]
    except (ValueError, KeyError, TypeError):
        raise _malformed("The new key policy is not a policy document.") from None
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal")
        principals = principal.get("AWS", []) if isinstance(principal, dict) else []
        for arn in [principals] if isinstance(principals, str) else principals:
            if arn != "*" and not _exists(account, arn):
                raise _malformed("Policy contains a statement with one or more invalid principals.")


def _exists(account: str, arn: str) -> bool:
    """Return whether a principal exists. Principals of other accounts are unknown here and count as existing."""
    parts = arn.split(":", 5)
    if len(parts) < 6 or parts[4] != account or parts[5] == "root":
        return len(parts) == 6 or arn.isdigit()
    iam = iam_backends[account][parts[1]]
    principal_type = parts[5].partition("/")[0]
    if principal_type == "role":
        return any(role.arn == arn for role in iam.roles.values())
    if principal_type == "user":
        return any(user.arn == arn for user in iam.users.values())
    return principal_type == "assumed-role"


def _malformed(message: str) -> JsonRESTError:
    return JsonRESTError("MalformedPolicyDocumentException", message)


def _due_deletions() -> Iterator[Due]:
    backend: Any
    for _, _, backend in kms_backends.iter_backends():
        for name, key in backend.keys.items():
            if key.deletion_date is not None:
                deletion_time = key.deletion_date.replace(tzinfo=UTC).timestamp()
                yield deletion_time, lambda backend=backend, name=name: backend.keys.pop(name)  # type: ignore[misc]
