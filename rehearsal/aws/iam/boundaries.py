"""Permissions boundaries of roles: IAM requires that the policy exists (moto checks only the form of the ARN)."""

from typing import Any

from moto.iam.exceptions import NotFoundException
from moto.iam.models import IAMBackend

from rehearsal.aws.moto_extension import extend


def install() -> None:
    """Add the check to the creation and update of roles."""
    moto_create, moto_put = IAMBackend.create_role, IAMBackend.put_role_permissions_boundary

    def create_role(self: Any, *args: Any, **kwargs: Any) -> Any:
        boundary = kwargs["permissions_boundary"] if "permissions_boundary" in kwargs else args[3]
        _require_existing(self, boundary)
        return moto_create(self, *args, **kwargs)

    def put_role_permissions_boundary(self: Any, role_name: str, permissions_boundary: str) -> None:
        _require_existing(self, permissions_boundary)
        moto_put(self, role_name, permissions_boundary)

    extend(IAMBackend, create_role, put_role_permissions_boundary)


def _require_existing(backend: Any, boundary: str | None) -> None:
    if boundary and backend.policy_arn_regex.match(boundary) and boundary not in backend.managed_policies:
        raise NotFoundException(f"Scope ARN: {boundary} does not exist or is not attachable.")
