"""The worker group from the operator's side: its members, nodes added all or none, and what was added taken back."""

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from contract.manifest import Manifest
from contract.objects import client
from trainyard.progress import Display

# LaunchInstances takes at most 100 instances a call.
INSTANCES_PER_CALL = 100


class CapacityError(RuntimeError):
    """Fewer nodes than asked for could be launched; the message has AWS's error codes."""


class Workers:
    """The groups of a stack's manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.group = manifest.groups[0]
        self.added: list[str] = []
        self._names = [group.autoscaling_group for group in manifest.groups]
        self._autoscaling = client("autoscaling", manifest.region)

    def described(self) -> list[dict[str, Any]]:
        """The groups as Auto Scaling has them."""
        answer = self._autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=self._names)
        found: list[dict[str, Any]] = answer["AutoScalingGroups"]
        return found

    def members(self) -> list[str]:
        """Every instance that is in a group, leaving ones included."""
        return [instance["InstanceId"] for group in self.described() for instance in group["Instances"]]

    def add(self, wanted: int, token: str) -> list[str]:
        """Launch `wanted` nodes. Raises CapacityError when fewer came: those are in `added`, to be taken back.

        `token` makes the calls idempotent: another launch has another one.
        """
        while (there := len(self.added)) < wanted:
            count = min(INSTANCES_PER_CALL, wanted - there)
            answer = self._autoscaling.launch_instances(
                AutoScalingGroupName=self.group.autoscaling_group,
                RequestedCapacity=count,
                SubnetIds=[self.group.subnets[0]],
                ClientToken=f"{token}-{there}",
                RetryStrategy="none",
            )
            started = [name for part in answer.get("Instances", []) for name in part["InstanceIds"]]
            self.added += started
            if len(started) < count:
                raise CapacityError(
                    f"{len(self.added)} of {wanted} nodes could be launched, so none stays: {_reasons(answer)}"
                )
        return self.added

    def take_back(self, show: Display) -> None:
        """Only what was added goes. One that has gone meanwhile hinders no other."""
        for name in self.added:
            for call, more in (
                ("terminate_instance_in_auto_scaling_group", {"ShouldDecrementDesiredCapacity": True}),
                # Nothing is to be saved on it: the hook need not hold it.
                (
                    "complete_lifecycle_action",
                    {
                        "AutoScalingGroupName": self.group.autoscaling_group,
                        "LifecycleHookName": self.group.lifecycle_hook,
                        "LifecycleActionResult": "CONTINUE",
                    },
                ),
            ):
                try:
                    getattr(self._autoscaling, call)(InstanceId=name, **more)
                except (BotoCoreError, ClientError) as error:
                    show.detail(name, str(error))
        if self.added:
            show.line("nodes", f"taken back: {', '.join(self.added)}")

    def empty(self) -> None:
        """Every group on its way to nothing."""
        for group in self.described():
            if group["DesiredCapacity"]:
                self._autoscaling.set_desired_capacity(
                    AutoScalingGroupName=group["AutoScalingGroupName"], DesiredCapacity=0, HonorCooldown=False
                )


def _reasons(answer: dict[str, Any]) -> str:
    errors = [
        f"{error.get('ErrorCode', '?')} in {error.get('AvailabilityZone', '?')}: {error.get('ErrorMessage', '')}"
        for error in answer.get("Errors", [])
    ]
    return "; ".join(errors) or "AWS gave no reason"
