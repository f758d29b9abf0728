"""The worker group from the operator's side: its members, nodes added all or none, and what was added taken back."""

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from contract.lease import put_lease
from contract.manifest import Manifest
from contract.objects import client
from trainyard.errors import CapacityError
from trainyard.progress import Display

# LaunchInstances takes at most 100 instances a call.
INSTANCES_PER_CALL = 100
TRIES, PAUSE_SECONDS = 3, 2.0


class Workers:
    """The groups of a stack's manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.group = manifest.groups[0]
        self._before: set[str] | None = None
        self._names = [group.autoscaling_group for group in manifest.groups]
        self._autoscaling = client("autoscaling", manifest.region)

    def _described(self) -> list[dict[str, Any]]:
        """The groups as Auto Scaling has them."""
        answer = self._autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=self._names)
        found: list[dict[str, Any]] = answer["AutoScalingGroups"]
        return found

    def members(self) -> list[str]:
        """Every instance that is in a group, leaving ones included."""
        return list(self._states())

    def _states(self) -> dict[str, str]:
        """Member -> life-cycle state."""
        return {one["InstanceId"]: one["LifecycleState"] for group in self._described() for one in group["Instances"]}

    def add(self, wanted: int, token: str) -> list[str]:
        """Launch `wanted` nodes. Raises CapacityError when fewer came: `take_back` then ends those.

        `token` makes the calls idempotent: another launch has another one.
        """
        self._before = set(self.members())
        added: list[str] = []
        while len(added) < wanted:
            count = min(INSTANCES_PER_CALL, wanted - len(added))
            try:
                answer = self._autoscaling.launch_instances(
                    AutoScalingGroupName=self.group.autoscaling_group,
                    RequestedCapacity=count,
                    SubnetIds=[self.group.subnets[0]],
                    ClientToken=f"{token}-{len(added)}",
                    RetryStrategy="none",
                )
            except ClientError as error:
                answer = {"Errors": [{"ErrorCode": error.response["Error"]["Code"], "ErrorMessage": str(error)}]}
            started = [name for part in answer.get("Instances", []) for name in part["InstanceIds"]]
            added += started
            if len(started) < count:
                raise CapacityError(
                    f"{len(added)} of {wanted} nodes could be launched, so none stays: {_reasons(answer)}"
                )
        return added

    def take_back(self, show: Display) -> list[str]:
        """End what has come into the groups since `add` began, also where an interrupt hid its answer.

        Returns the nodes that could not be ended.
        """
        if self._before is None:
            return []
        new = [name for name in self.members() if name not in self._before]
        stuck = [name for name in new if not self.end(name, show)]
        if gone := [name for name in new if name not in stuck]:
            show.line("nodes", f"taken back: {', '.join(gone)}")
        return stuck

    def end(self, name: str, show: Display) -> bool:
        """End one member, and ask for no other in its place; whether AWS has it."""
        for attempt in range(TRIES):
            try:
                self._autoscaling.terminate_instance_in_auto_scaling_group(
                    InstanceId=name, ShouldDecrementDesiredCapacity=True
                )
                break
            except (BotoCoreError, ClientError) as error:
                if self._states().get(name, "Terminated").startswith("Terminat"):
                    break  # somebody else has ended it
                show.line(name, f"could not be ended: {error}")
                time.sleep(attempt * PAUSE_SECONDS)
        else:
            return False
        try:  # it has nothing to save: the hook need not hold it
            self._autoscaling.complete_lifecycle_action(
                AutoScalingGroupName=self.group.autoscaling_group,
                LifecycleHookName=self.group.lifecycle_hook,
                LifecycleActionResult="CONTINUE",
                InstanceId=name,
            )
        except (BotoCoreError, ClientError) as error:
            show.detail(name, str(error))  # the hook's own time-out lets it go
        return True

    def put_lease(self, until: float) -> None:
        """Let AWS itself end the groups' nodes at `until`, Unix time, whoever dies before."""
        put_lease(self._autoscaling, self._names, until)

    def empty(self) -> list[str]:
        """Send every group on its way to nothing; the members that are still there."""
        groups = self._described()
        for group in groups:
            if group["DesiredCapacity"]:
                self._autoscaling.set_desired_capacity(
                    AutoScalingGroupName=group["AutoScalingGroupName"], DesiredCapacity=0, HonorCooldown=False
                )
        return [one["InstanceId"] for group in groups for one in group["Instances"]]


def _reasons(answer: dict[str, Any]) -> str:
    errors = [
        f"{error['ErrorCode']} in {error.get('AvailabilityZone', 'the group')}: {error.get('ErrorMessage', '')}"
        for error in answer.get("Errors", [])
    ]
    return "; ".join(errors) or "AWS gave no reason"
