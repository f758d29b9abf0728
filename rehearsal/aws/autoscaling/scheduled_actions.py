"""Scheduled actions of Auto Scaling groups: stored per group (moto: one per name and region) and executed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend, FakeScheduledAction, autoscaling_backends

from rehearsal.aws.autoscaling.members import is_suspended
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.lookup import find_group
from rehearsal.aws.moto_extension import extend


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
    """Create or replace a scheduled action of a group."""
    group = find_group(self, name)
    if recurrence is not None:
        raise NotImplementedError("a scheduled action with Recurrence")
    if start_time is None:
        raise ValidationError("Either Recurrence or StartTime must be specified.")
    if _unix(start_time) <= CLOCK.now():
        raise ValidationError(f"Given start time is in the past: {start_time}")
    if desired_capacity is None and max_size is None and min_size is None:
        raise ValidationError("At least one of MinSize, MaxSize and DesiredCapacity must be specified.")
    model: Any = FakeScheduledAction
    action = model(
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
    """Delete a scheduled action of a group."""
    find_group(self, auto_scaling_group_name)
    if self.scheduled_actions.pop(f"{auto_scaling_group_name}/{scheduled_action_name}", None) is None:
        raise ValidationError("Scheduled action name not found")


def _unix(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _due_actions() -> Iterator[Due]:
    backends: Any = autoscaling_backends
    for _, _, backend in backends.iter_backends():
        for key, action in backend.scheduled_actions.items():
            yield _unix(action.start_time), lambda backend=backend, key=key: _run(backend, key)  # type: ignore[misc]


def _run(backend: Any, key: str) -> None:
    """Set the group's limits and desired capacity. Without a requested capacity, the current one is clamped.

    Contradictory limits, or a capacity outside them, fail the action without effect, as in AWS.
    """
    action = backend.scheduled_actions.pop(key)
    group = backend.autoscaling_groups[action.auto_scaling_group_name]
    if is_suspended(group, "ScheduledActions"):
        return
    minimum = group.min_size if action.min_size is None else int(action.min_size)
    maximum = group.max_size if action.max_size is None else int(action.max_size)
    requested = action.desired_capacity
    desired = min(max(group.desired_capacity, minimum), maximum) if requested is None else int(requested)
    if minimum <= desired <= maximum:
        group.min_size, group.max_size = minimum, maximum
        group.set_desired_capacity(desired)


def install() -> None:
    """Replace moto's operations and add due actions to the clock."""
    extend(AutoScalingBackend, put_scheduled_update_group_action, delete_scheduled_action)
    CLOCK.add_source(_due_actions)
