"""Health checks of Auto Scaling: a member whose instance is impaired is replaced after some minutes.

Source: Auto Scaling user guide, "Health checks for instances in an Auto Scaling group": Auto Scaling waits for an
impaired instance to recover, and checks no instance in its grace period. That it waits for three minutes is an
assumption. As with the controller's own checks, the profile of a rehearsal does not scale this time.
"""

from collections.abc import Iterator
from typing import Any

from moto.autoscaling.models import autoscaling_backends

from rehearsal.aws.autoscaling.members import is_suspended
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.timing import timing

RECOVERY_SECONDS = 180.0


def install() -> None:
    """Replace impaired members of all groups."""
    CLOCK.add_source(_due_health_checks)


def _due_health_checks() -> Iterator[Due]:
    """Yield the time at which each impaired member becomes unhealthy, and the action."""
    backends: Any = autoscaling_backends
    for _, _, backend in backends.iter_backends():
        for group in backend.autoscaling_groups.values():
            if is_suspended(group, "HealthCheck"):
                continue
            for member in group.instance_states:
                silent_since = member.instance.silent_since
                state = (member.lifecycle_state, member.health_status, member.instance.state)
                if silent_since is not None and state == ("InService", "Healthy", "running"):
                    impaired = silent_since + timing().impaired_seconds
                    grace_end = getattr(member, "in_service_since", 0.0) + group.health_check_grace_period
                    when = max(impaired + RECOVERY_SECONDS, grace_end)
                    yield when, _marking(backend, member.instance.id)


def _marking(backend: Any, instance: str) -> Any:
    return lambda: backend.set_instance_health(instance, "Unhealthy", respect_grace_period=False)
