"""Lifecycle hooks: a group's instance stays in a wait state until its hooks are completed or time out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.lookup import find_group
from rehearsal.aws.moto_extension import extend

LAUNCHING, TERMINATING = "autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"
_WAIT_STATES = {LAUNCHING: "Pending:Wait", TERMINATING: "Terminating:Wait"}
_RESULTS = ("CONTINUE", "ABANDON")
_HEARTBEAT_SECONDS = range(30, 7201)
_SUPPORTED_KEYS = {
    "LifecycleHookName",
    "AutoScalingGroupName",
    "LifecycleTransition",
    "HeartbeatTimeout",
    "DefaultResult",
}

Continuation = Callable[[bool], None]


@dataclass(eq=False)
class Wait:
    """The wait of one hook for one group member. `proceed` receives whether every hook had the result CONTINUE."""

    hook: Any
    member: Any
    proceed: Continuation
    token: str = field(default_factory=lambda: str(uuid4()))
    started_at: float = field(default_factory=CLOCK.now)
    heartbeat: float = field(default_factory=CLOCK.now)

    @property
    def deadline(self) -> float:
        """Unix time at which the wait times out."""
        return min(
            self.heartbeat + float(self.hook.heartbeat_timeout), self.started_at + float(self.hook.global_timeout)
        )


_waits: list[Wait] = []


def start_hooks(member: Any, transition: str, proceed: Continuation) -> None:
    """Put a member in the wait state of its group's hooks for a transition; without hooks, call `proceed` at once."""
    group = member.auto_scaling_group
    hooks = group.autoscaling_backend.describe_lifecycle_hooks(group.name)
    waits = [Wait(hook, member, proceed) for hook in hooks if hook.lifecycle_transition == transition]
    if not waits:
        proceed(True)
        return
    member.lifecycle_state = _WAIT_STATES[transition]
    _waits.extend(waits)


def release(member: Any) -> None:
    """Discard the waits of a member."""
    _waits[:] = [wait for wait in _waits if wait.member is not member]


def _finish(wait: Wait, result: str) -> None:
    _waits.remove(wait)
    others = any(other.member is wait.member for other in _waits)
    if result == "ABANDON" or not others:
        release(wait.member)
        wait.proceed(result == "CONTINUE")


def _due_timeouts() -> Iterator[Due]:
    return ((wait.deadline, lambda wait=wait: _finish(wait, wait.hook.default_result)) for wait in _waits)  # type: ignore[misc]


def _find_wait(response: Any) -> Wait:
    """Return the wait that a request identifies by instance or token."""
    name, hook = response._get_param("AutoScalingGroupName"), response._get_param("LifecycleHookName")
    instance, token = response._get_param("InstanceId"), response._get_param("LifecycleActionToken")
    if not (instance or token):
        raise ValidationError("Either InstanceId or LifecycleActionToken must be specified.")
    for wait in _waits:
        group = wait.member.auto_scaling_group
        if (
            (group.autoscaling_backend, group.name) == (response.autoscaling_backend, name)
            and wait.hook.name == hook
            and (not instance or wait.member.instance.id == instance)
            and (not token or wait.token == token)
        ):
            return wait
    description = f"instance ID {instance}" if instance else f"token {token}"
    raise ValidationError(f"No active Lifecycle Action found with {description}")


def complete_lifecycle_action(self: Any) -> ActionResult:
    """Complete a hook's wait with CONTINUE or ABANDON."""
    result = self._get_param("LifecycleActionResult")
    if result not in _RESULTS:
        raise ValidationError(f"Lifecycle action result must be one of {', '.join(_RESULTS)}, not {result}.")
    _finish(_find_wait(self), result)
    return ActionResult({})


def record_lifecycle_action_heartbeat(self: Any) -> ActionResult:
    """Restart the heartbeat timeout of a wait."""
    _find_wait(self).heartbeat = CLOCK.now()
    return ActionResult({})


def put_lifecycle_hook(self: Any) -> ActionResult:
    """Create a hook, or change the specified attributes of an existing hook."""
    backend, parameters = self.autoscaling_backend, dict(self._get_params())
    unsupported = {key for key, value in parameters.items() if value not in (None, "")} - _SUPPORTED_KEYS
    if unsupported:
        raise NotImplementedError(f"a lifecycle hook with {', '.join(sorted(unsupported))}")
    name, hook_name = parameters["AutoScalingGroupName"], parameters["LifecycleHookName"]
    find_group(backend, name)
    existing = next(iter(backend.describe_lifecycle_hooks(name, [hook_name])), None)
    transition = parameters.get("LifecycleTransition") or (existing and existing.lifecycle_transition)
    result = parameters.get("DefaultResult") or (existing.default_result if existing else "ABANDON")
    seconds = int(parameters.get("HeartbeatTimeout") or (existing.heartbeat_timeout if existing else 3600))
    if transition not in _WAIT_STATES:
        raise ValidationError(f"LifecycleTransition must be one of {', '.join(_WAIT_STATES)}, not {transition}.")
    if result not in _RESULTS:
        raise ValidationError(f"DefaultResult must be one of {', '.join(_RESULTS)}, not {result}.")
    if seconds not in _HEARTBEAT_SECONDS:
        raise ValidationError(f"HeartbeatTimeout must be between 30 and 7200 seconds, not {seconds}.")
    hook = backend.create_lifecycle_hook(hook_name, name, transition, seconds, result)
    hook.role_arn = hook.notification_target_arn = None
    hook.global_timeout = min(172800, 100 * seconds)
    for wait in _waits:
        if wait.hook is existing:
            wait.hook = hook
    return ActionResult({})


def _delete_lifecycle_hook(backend: Any, group_name: str, name: str) -> None:
    """Delete a hook. Its waits end: a launch is abandoned, a termination continues."""
    hook = backend.lifecycle_hooks.pop(f"{group_name}_{name}", None)
    if hook is None:
        raise ValidationError(f"No Lifecycle Hook found with name {name}")
    for wait in [wait for wait in _waits if wait.hook is hook]:
        if wait in _waits:
            _finish(wait, "CONTINUE" if hook.lifecycle_transition == TERMINATING else "ABANDON")


def install() -> None:
    """Add the operations to moto and the timeouts to the clock."""
    extend(AutoScalingResponse, put_lifecycle_hook, complete_lifecycle_action, record_lifecycle_action_heartbeat)
    extend(AutoScalingBackend, delete_lifecycle_hook=_delete_lifecycle_hook)
    CLOCK.add_source(_due_timeouts)
