"""The service-linked role of Auto Scaling: AWS creates it with the account's first group and keeps it.

Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/autoscaling-service-linked-role.html
"""

from typing import Any

from moto.autoscaling.models import AutoScalingBackend
from moto.iam.models import iam_backends

from rehearsal.aws.moto_extension import extend

AUTO_SCALING = "autoscaling.amazonaws.com"


def service_role(account: str, service: str) -> Any:
    """Return the service-linked role of a service, or None before its creation."""
    roles = iam_backends[account]["aws"].roles.values()
    return next((role for role in roles if role.path == f"/aws-service-role/{service}/"), None)


def is_linked(role: Any) -> bool:
    """Return whether a role is a service-linked role, which a teardown does not delete."""
    return str(role.path).startswith("/aws-service-role/")


def install() -> None:
    """Create the role with the first group, before its instances."""
    moto_create = AutoScalingBackend.create_auto_scaling_group

    def create_auto_scaling_group(self: Any, name: str, **options: Any) -> Any:
        if service_role(self.account_id, AUTO_SCALING) is None:  # before the group launches its first instances
            iam_backends[self.account_id]["aws"].create_service_linked_role(AUTO_SCALING, "", "")
        return moto_create(self, name, **options)

    extend(AutoScalingBackend, create_auto_scaling_group)
