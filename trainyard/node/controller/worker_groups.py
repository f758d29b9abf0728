"""The worker groups as Auto Scaling knows them: members, lease, and the way back to nothing."""

from collections.abc import Iterable

from trainyard.aws.lease import put_lease
from trainyard.aws.s3 import client
from trainyard.models.manifest import WorkerGroup

_GONE = ("Terminating", "Terminated", "Detaching", "Detached")


class Groups:
    """All worker groups of a cluster."""

    def __init__(self, groups: Iterable[WorkerGroup], region: str) -> None:
        self._names = [group.autoscaling_group for group in groups]
        self._autoscaling = client("autoscaling", region)

    def members(self) -> list[str]:
        """Instances that are in a group and on their way to stay."""
        answer = self._autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=self._names)
        return [
            instance["InstanceId"]
            for group in answer["AutoScalingGroups"]
            for instance in group["Instances"]
            if not instance["LifecycleState"].startswith(_GONE)
        ]

    def remove(self, instance: str) -> None:
        """End one member, and ask for no other in its place."""
        self._autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=True
        )

    def mark_unhealthy(self, instance: str) -> None:
        """Have the group replace one member, now: the grace period is for nodes that still configure themselves."""
        self._autoscaling.set_instance_health(
            InstanceId=instance, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
        )

    def renew_lease(self, until: float) -> None:
        """Move the lease to `until`, Unix time in seconds."""
        put_lease(self._autoscaling, self._names, until)

    def end(self) -> None:
        """To nothing, now. The lease stays: it ends what a crash between the calls may have left."""
        for name in self._names:
            self._autoscaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0, HonorCooldown=False)
