"""Scheduled actions of Auto Scaling groups, kept per group: moto keeps one of a name in the whole region."""

from datetime import datetime
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend, FakeScheduledAction
from moto.core.utils import utcnow

from rehearsal.aws.extension import extend
from rehearsal.aws.groups import group_of


def put_scheduled_update_group_action(
    self: Any,
    name: str,
    desired_capacity: int | None,
    max_size: int | None,
    min_size: int | None,
    scheduled_action_name: str,
    start_time: datetime | None,
    end_time: datetime | None,
    recurrence: str | None,
    timezone: str | None,
) -> Any:
    group = group_of(self, name)
    if start_time is None and recurrence is None:
        raise ValidationError("Either Recurrence or StartTime must be specified.")
    if start_time is not None and start_time.replace(tzinfo=None) <= utcnow():
        raise ValidationError(f"Given start time is in the past: {start_time}")
    if desired_capacity is None and max_size is None and min_size is None:
        raise ValidationError("At least one of MinSize, MaxSize and DesiredCapacity must be specified.")
    kind: Any = FakeScheduledAction
    action = kind(
        name, desired_capacity, max_size, min_size, scheduled_action_name, start_time, end_time, recurrence, timezone
    )
    action.time = start_time
    action.scheduled_action_arn = (
        f"arn:{self.partition}:autoscaling:{self.region_name}:{self.account_id}:scheduledUpdateGroupAction:"
        f"{group._id}:autoScalingGroupName/{name}:scheduledActionName/{scheduled_action_name}"
    )
    self.scheduled_actions[f"{name}/{scheduled_action_name}"] = action
    return action


def delete_scheduled_action(self: Any, auto_scaling_group_name: str, scheduled_action_name: str) -> None:
    group_of(self, auto_scaling_group_name)
    if self.scheduled_actions.pop(f"{auto_scaling_group_name}/{scheduled_action_name}", None) is None:
        raise ValidationError("Scheduled action name not found")


def install() -> None:
    extend(AutoScalingBackend, put_scheduled_update_group_action, delete_scheduled_action)
