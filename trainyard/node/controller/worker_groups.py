"""The cluster's worker groups in Auto Scaling, as the controller uses them: members, lease, scaling to zero."""

from collections.abc import Iterable

from trainyard.aws import autoscaling
from trainyard.aws.lease import put_lease
from trainyard.models.manifest import WorkerGroup

_TERMINATING_STATES = ("Terminating", "Terminated", "Detaching", "Detached")


class WorkerGroups:
    """Auto Scaling groups of all workers of a cluster."""

    def __init__(self, groups: Iterable[WorkerGroup], region: str) -> None:
        self._names = [group.autoscaling_group for group in groups]
        self.region = region

    def members(self) -> list[str]:
        """Return the instances of all groups, without those that are terminating or detaching."""
        return [
            instance["InstanceId"]
            for group in autoscaling.describe_groups(self.region, self._names)
            for instance in group["Instances"]
            if not instance["LifecycleState"].startswith(_TERMINATING_STATES)
        ]

    def remove(self, instance: str) -> None:
        """Terminate a member without replacement."""
        autoscaling.terminate_instance(self.region, instance)

    def mark_unhealthy(self, instance: str) -> None:
        """Mark a member unhealthy, so that its group replaces it."""
        autoscaling.set_unhealthy(self.region, instance)

    def renew_lease(self, until: float) -> None:
        """Move the end of the lease to `until` (Unix time, seconds)."""
        put_lease(self.region, self._names, until)

    def scale_to_zero(self) -> None:
        """Scale every group to zero. The lease stays: it terminates workers that a crash between the calls leaves."""
        for name in self._names:
            autoscaling.set_desired_capacity(self.region, name, 0)
