"""Transitional states of instances: `pending` after a launch, `shutting-down` after a termination.

Sources: EC2 user guide, "Amazon EC2 instance state changes". GPU and metal types are pending or shutting-down for
minutes: packer issue 682 measured 19 minutes on c5.metal, Bottlerocket issue 337 doubled a limit of five minutes.
"""

from collections.abc import Callable, Iterator
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import InstanceState

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.timing import timing

_PENDING, _RUNNING = ("pending", 0), ("running", 16)
_SHUTTING_DOWN, _TERMINATED = ("shutting-down", 32), ("terminated", 48)
ENDED_STATES = frozenset(("shutting-down", "terminated"))
_scheduled: list[Due] = []


def start_launch(instance: Any) -> None:
    """Put a new instance in the state pending, then running."""
    seconds = _by_size(instance, timing().pending_seconds, timing().large_gpu_pending_seconds)
    _change(instance, seconds, _PENDING, _RUNNING)


def start_termination(instance: Any) -> None:
    """Put a terminated instance in the state shutting-down, then terminated.

    SkipOsShutdown "supports faster state transitions" (release notes of EC2's API, 2025-07-23). By how much is an
    assumption, as is that it has no effect on an instance that is shutting down already.
    """
    seconds = _by_size(instance, timing().shutting_down_seconds, timing().large_gpu_shutting_down_seconds)
    if instance.skips_os_shutdown:
        seconds = min(seconds, timing().skip_os_shutdown_seconds)
    _change(instance, seconds, _SHUTTING_DOWN, _TERMINATED)


def _by_size(instance: Any, seconds: float, large_seconds: float | None) -> float:
    """Return `large_seconds`, unless None, for a metal instance or one with 8 or more GPUs, otherwise `seconds`."""
    gpus = INSTANCE_TYPES[instance.instance_type].get("GpuInfo", {}).get("Gpus", [])
    is_large = ".metal" in instance.instance_type or sum(gpu["Count"] for gpu in gpus) >= 8
    return large_seconds if is_large and large_seconds is not None else seconds


def after_transition(instance: Any, action: Callable[[], None]) -> None:
    """Call `action` when the instance's transition is complete: at once if it is in none."""
    if instance.transition is None:
        action()
    else:
        instance.transition.append(action)


def _change(instance: Any, seconds: float, first: tuple[str, int], last: tuple[str, int]) -> None:
    actions: list[Callable[[], None]] = []
    instance.transition = actions

    def complete() -> None:
        if instance.transition is not actions:
            return  # a termination has replaced a launch
        instance._state, instance.transition = InstanceState(*last), None
        for action in actions:
            action()

    if seconds <= 0:
        complete()
    else:
        instance._state = InstanceState(*first)
        _scheduled.append((CLOCK.now() + seconds, complete))


def _due_transitions() -> Iterator[Due]:
    for entry in list(_scheduled):
        yield entry[0], lambda entry=entry: _run(entry)  # type: ignore[misc]


def _run(entry: Due) -> None:
    _scheduled.remove(entry)
    entry[1]()


def install() -> None:
    """Add the transitions to the clock."""
    CLOCK.add_source(_due_transitions)
