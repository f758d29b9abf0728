"""KMS keys as KMS keeps them: found by any of their names, deleted once their window is over."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.iam.models import iam_backends
from moto.kms.models import KmsBackend, kms_backends

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.extension import extend


def find_key(account: str, region: str, key: str) -> Any:
    """The key of this id, alias or ARN of either; None where there is none."""
    parts = key.split(":")
    keys = kms_backends[account][parts[3] if key.startswith("arn:") else region]
    try:
        return keys.keys.get(keys.any_id_to_key_id(key))
    except AttributeError:  # moto's answer to an alias that nobody made
        return None


def install() -> None:
    """A key's ARN serves as well as its id (moto checks that, then looks for the id only); deleted keys go in time."""
    make, put, schedule = KmsBackend.create_key, KmsBackend.put_key_policy, KmsBackend.schedule_key_deletion
    for name in ("enable_key", "disable_key", "cancel_key_deletion"):
        act = getattr(KmsBackend, name)

        def by_id(self: Any, key_id: str, act: Callable[..., Any] = act) -> Any:
            return act(self, self.get_key_id(key_id))

        extend(KmsBackend, **{name: by_id})

    def create_key(self: Any, policy: str | None, key_usage: str | None, *args: Any, **given: Any) -> Any:
        check_policy(self.account_id, policy)
        return make(self, policy, key_usage or "ENCRYPT_DECRYPT", *args, **given)

    def put_key_policy(self: Any, key_id: str, policy: str) -> None:
        check_policy(self.account_id, policy)
        put(self, key_id, policy)

    def schedule_key_deletion(self: Any, key_id: str, pending_window_in_days: int) -> float | None:
        if schedule(self, self.get_key_id(key_id), pending_window_in_days) is None:  # moto refuses such a window
            return None
        ends = CLOCK.now() + pending_window_in_days * 86400
        self.keys[self.get_key_id(key_id)].deletion_date = datetime.fromtimestamp(ends, UTC).replace(tzinfo=None)
        return ends

    extend(KmsBackend, create_key, put_key_policy, schedule_key_deletion)
    CLOCK.watch(_deletions)


def check_policy(account: str, policy: str | None) -> None:
    """Refuse a policy that names roles or users which are not there, as KMS does, and one that is no JSON.

    Source: https://docs.aws.amazon.com/kms/latest/developerguide/key-policy-overview.html, and the error's own page,
    https://docs.aws.amazon.com/kms/latest/APIReference/API_PutKeyPolicy.html. A service-linked role is there only once
    its service has made it: that of Auto Scaling, with the account's first group.
    """
    if not policy:  # KMS gives its own
        return
    try:
        statements = json.loads(policy)["Statement"]
    except (ValueError, KeyError, TypeError):
        raise _malformed("The new key policy is not a policy document.") from None
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal")
        named = principal.get("AWS", []) if isinstance(principal, dict) else []
        for arn in [named] if isinstance(named, str) else named:
            if arn != "*" and not _exists(account, arn):
                raise _malformed("Policy contains a statement with one or more invalid principals.")


def _exists(account: str, arn: str) -> bool:
    """Of this account only: another's people and roles are not known here."""
    parts = arn.split(":", 5)
    if len(parts) < 6 or parts[4] != account or parts[5] == "root":
        return len(parts) == 6 or arn.isdigit()
    iam = iam_backends[account][parts[1]]
    kind = parts[5].partition("/")[0]
    if kind == "role":
        return any(role.arn == arn for role in iam.roles.values())
    if kind == "user":
        return any(user.arn == arn for user in iam.users.values())
    return kind == "assumed-role"


def _malformed(message: str) -> JsonRESTError:
    return JsonRESTError("MalformedPolicyDocumentException", message)


def _deletions() -> Iterator[Due]:
    backend: Any
    for _, _, backend in kms_backends.iter_backends():
        for name, key in backend.keys.items():
            if key.deletion_date is not None:
                ends = key.deletion_date.replace(tzinfo=UTC).timestamp()
                yield ends, lambda backend=backend, name=name: backend.keys.pop(name)  # type: ignore[misc]
