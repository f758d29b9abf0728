"""Permissions boundaries of roles: IAM takes none that is not there (moto looks at the ARN's form only)."""

from typing import Any

from moto.iam.exceptions import NotFoundException
from moto.iam.models import IAMBackend

from rehearsal.aws.extension import extend


def install() -> None:
    make, put = IAMBackend.create_role, IAMBackend.put_role_permissions_boundary

    def create_role(self: Any, *args: Any, **given: Any) -> Any:
        boundary = given["permissions_boundary"] if "permissions_boundary" in given else args[3]
        _check(self, boundary)
        return make(self, *args, **given)

    def put_role_permissions_boundary(self: Any, role_name: str, permissions_boundary: str) -> None:
        _check(self, permissions_boundary)
        put(self, role_name, permissions_boundary)

    extend(IAMBackend, create_role, put_role_permissions_boundary)


def _check(backend: Any, boundary: str | None) -> None:
    if boundary and backend.policy_arn_regex.match(boundary) and boundary not in backend.managed_policies:
        raise NotFoundException(f"Scope ARN: {boundary} does not exist or is not attachable.")
