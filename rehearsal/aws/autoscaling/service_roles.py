"""The service-linked role of Auto Scaling: there from the account's first group on, and kept by the account for good.

Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/autoscaling-service-linked-role.html
"""

from typing import Any

from moto.autoscaling.models import AutoScalingBackend
from moto.iam.models import iam_backends

from rehearsal.aws.extension import extend

AUTO_SCALING = "autoscaling.amazonaws.com"


def service_role(account: str, service: str) -> Any:
    """The role linked to a service; None while there is none."""
    roles = iam_backends[account]["aws"].roles.values()
    return next((role for role in roles if role.path == f"/aws-service-role/{service}/"), None)


def is_linked(role: Any) -> bool:
    """Whether a service made the role for itself: nobody is asked to delete it."""
    return str(role.path).startswith("/aws-service-role/")


def install() -> None:
    create = AutoScalingBackend.create_auto_scaling_group

    def create_auto_scaling_group(self: Any, name: str, **given: Any) -> Any:
        made = create(self, name, **given)
        if service_role(self.account_id, AUTO_SCALING) is None:
            iam_backends[self.account_id]["aws"].create_service_linked_role(AUTO_SCALING, "", "")
        return made

    extend(AutoScalingBackend, create_auto_scaling_group)
