"""Instance refreshes: they replace the instances of a group after its launch template has changed.

Only refreshes that may replace all instances at once are emulated (MinHealthyPercentage 0): each instance terminates
while its replacement launches.
https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-refresh-overview.html
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.models import FakeAutoScalingGroup
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from rehearsal.aws.autoscaling.members import is_terminating, terminate_member
from rehearsal.aws.lookup import find_group
from rehearsal.aws.moto_extension import extend

_SUPPORTED_KEYS = {"AutoScalingGroupName", "Strategy", "Preferences"}
_SUPPORTED_PREFERENCES = {"MinHealthyPercentage", "InstanceWarmup"}


@dataclass
class InstanceRefresh:
    """A refresh. It ends when the replaced instances are terminated and the new instances are in service."""

    group: Any
    replaced: list[Any]
    is_cancelled: bool = False
    id: str = field(default_factory=lambda: str(uuid4()))

    @property
    def is_active(self) -> bool:
        """Whether it is in progress."""
        members = self.group.instance_states
        in_service = [member for member in members if member.lifecycle_state == "InService"]
        has_ended = len(in_service) >= self.group.desired_capacity and not any(
            each in members for each in self.replaced
        )
        return not self.is_cancelled and not has_ended


def start_instance_refresh(self: Any) -> ActionResult:
    """Terminate all instances of the group, and launch others from its current launch template."""
    preferences = self._get_param("Preferences") or {}
    unsupported = {key for key, value in self._get_params().items() if value not in (None, [], {})} - _SUPPORTED_KEYS
    unsupported |= preferences.keys() - _SUPPORTED_PREFERENCES
    if unsupported or int(preferences.get("MinHealthyPercentage", 90)):
        raise NotImplementedError(
            f"an instance refresh with {', '.join(sorted(unsupported)) or 'a minimum of healthy instances'}"
        )
    if self._get_param("Strategy") not in (None, "Rolling"):
        raise ValidationError("The instance refresh strategy must be Rolling.")
    group = find_group(self.autoscaling_backend, self._get_param("AutoScalingGroupName"))
    if group.instance_refresh is not None and group.instance_refresh.is_active:
        raise AutoscalingClientError(
            "InstanceRefreshInProgress",
            "An Instance Refresh is already in progress and blocks the execution of this Instance Refresh.",
        )
    replaced = [member for member in group.instance_states if not is_terminating(member)]
    group.instance_refresh = InstanceRefresh(group, replaced)
    for member in replaced:
        terminate_member(member)
    group.set_desired_capacity(group.desired_capacity)
    return ActionResult({"InstanceRefreshId": group.instance_refresh.id})


def cancel_instance_refresh(self: Any) -> ActionResult:
    """Cancel the refresh in progress. What it has replaced stays replaced."""
    group = find_group(self.autoscaling_backend, self._get_param("AutoScalingGroupName"))
    refresh = group.instance_refresh
    if refresh is None or not refresh.is_active:
        message = "No in progress or pending Instance Refresh found for Auto Scaling group " + group.name
        raise AutoscalingClientError("ActiveInstanceRefreshNotFound", message)
    refresh.is_cancelled = True
    return ActionResult({"InstanceRefreshId": refresh.id})


def install() -> None:
    """Add the operations to moto."""
    extend(AutoScalingResponse, start_instance_refresh, cancel_instance_refresh)
    extend(FakeAutoScalingGroup, instance_refresh=None)
