"""Life-cycle hooks: a member of a group is held in a wait state until its hooks are completed or time out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.extension import extend
from rehearsal.aws.lookup import group_of

LAUNCHING, TERMINATING = "autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"
_STATES = {LAUNCHING: "Pending:Wait", TERMINATING: "Terminating:Wait"}
_RESULTS = ("CONTINUE", "ABANDON")
_HEARTBEAT_SECONDS = range(30, 7201)
_KNOWN = {"LifecycleHookName", "AutoScalingGroupName", "LifecycleTransition", "HeartbeatTimeout", "DefaultResult"}

Proceed = Callable[[bool], None]


@dataclass(eq=False)
class Wait:
    """One hook's hold on one member. `proceed` is told whether no hook abandoned."""

    hook: Any
    member: Any
    proceed: Proceed
    token: str = field(default_factory=lambda: str(uuid4()))
    since: float = field(default_factory=CLOCK.now)
    beat: float = field(default_factory=CLOCK.now)

    @property
    def ends(self) -> float:
        return min(self.beat + float(self.hook.heartbeat_timeout), self.since + float(self.hook.global_timeout))


_waits: list[Wait] = []


def hold(member: Any, transition: str, proceed: Proceed) -> None:
    """Hold a member while its group's hooks on this transition wait, then let it proceed: at once without any."""
    group = member.auto_scaling_group
    hooks = group.autoscaling_backend.describe_lifecycle_hooks(group.name)
    waits = [Wait(hook, member, proceed) for hook in hooks if hook.lifecycle_transition == transition]
    if not waits:
        proceed(True)
        return
    member.lifecycle_state = _STATES[transition]
    _waits.extend(waits)


def release(member: Any) -> None:
    """Forget the waits of a member that is held no longer."""
    _waits[:] = [wait for wait in _waits if wait.member is not member]


def _finish(wait: Wait, result: str) -> None:
    _waits.remove(wait)
    others = any(other.member is wait.member for other in _waits)
    if result == "ABANDON" or not others:
        release(wait.member)
        wait.proceed(result == "CONTINUE")


def _timeouts() -> Iterator[Due]:
    return ((wait.ends, lambda wait=wait: _finish(wait, wait.hook.default_result)) for wait in _waits)  # type: ignore[misc]


def _asked_wait(response: Any) -> Wait:
    """The wait that a request names, by instance or by token."""
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
    what = f"instance ID {instance}" if instance else f"token {token}"
    raise ValidationError(f"No active Lifecycle Action found with {what}")


def complete_lifecycle_action(self: Any) -> ActionResult:
    result = self._get_param("LifecycleActionResult")
    if result not in _RESULTS:
        raise ValidationError(f"Lifecycle action result must be one of {', '.join(_RESULTS)}, not {result}.")
    _finish(_asked_wait(self), result)
    return ActionResult({})


def record_lifecycle_action_heartbeat(self: Any) -> ActionResult:
    _asked_wait(self).beat = CLOCK.now()
    return ActionResult({})


def put_lifecycle_hook(self: Any) -> ActionResult:
    """Make a hook, or change what is given of one that is there."""
    backend, asked = self.autoscaling_backend, dict(self._get_params())
    unknown = {key for key, value in asked.items() if value not in (None, "")} - _KNOWN
    if unknown:
        raise NotImplementedError(f"a life-cycle hook with {', '.join(sorted(unknown))}")
    name, hook_name = asked["AutoScalingGroupName"], asked["LifecycleHookName"]
    group_of(backend, name)
    before = next(iter(backend.describe_lifecycle_hooks(name, [hook_name])), None)
    transition = asked.get("LifecycleTransition") or (before and before.lifecycle_transition)
    result = asked.get("DefaultResult") or (before.default_result if before else "ABANDON")
    seconds = int(asked.get("HeartbeatTimeout") or (before.heartbeat_timeout if before else 3600))
    if transition not in _STATES:
        raise ValidationError(f"LifecycleTransition must be one of {', '.join(_STATES)}, not {transition}.")
    if result not in _RESULTS:
        raise ValidationError(f"DefaultResult must be one of {', '.join(_RESULTS)}, not {result}.")
    if seconds not in _HEARTBEAT_SECONDS:
        raise ValidationError(f"HeartbeatTimeout must be between 30 and 7200 seconds, not {seconds}.")
    made = backend.create_lifecycle_hook(hook_name, name, transition, seconds, result)
    made.role_arn = made.notification_target_arn = None
    made.global_timeout = min(172800, 100 * seconds)
    for wait in _waits:
        if wait.hook is before:
            wait.hook = made
    return ActionResult({})


def _delete_lifecycle_hook(backend: Any, group_name: str, name: str) -> None:
    """What it holds goes on: a launch is abandoned, a termination continues."""
    hook = backend.lifecycle_hooks.pop(f"{group_name}_{name}", None)
    if hook is None:
        raise ValidationError(f"No Lifecycle Hook found with name {name}")
    for wait in [wait for wait in _waits if wait.hook is hook]:
        if wait in _waits:
            _finish(wait, "CONTINUE" if hook.lifecycle_transition == TERMINATING else "ABANDON")


def install() -> None:
    extend(AutoScalingResponse, put_lifecycle_hook, complete_lifecycle_action, record_lifecycle_action_heartbeat)
    extend(AutoScalingBackend, delete_lifecycle_hook=_delete_lifecycle_hook)
    CLOCK.watch(_timeouts)
