"""The worker groups from the operator's side: their members, nodes added all or none, and what was added taken back."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.lease import lease_of, put_lease
from trainyard.aws.s3 import client
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.operations.capacity import launch_instances, raise_desired
from trainyard.operations.errors import CapacityError
from trainyard.operations.progress import Display

TRIES, PAUSE_SECONDS = 3, 2.0
_LEAVING = ("Terminat", "Detach")


class Workers:
    """The groups of a stack's manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._groups = {group.autoscaling_group: group for group in manifest.groups}
        self._before: set[str] | None = None
        self._desired: dict[str, int] = {}
        self._home: dict[str, WorkerGroup] = {}
        self._autoscaling = client("autoscaling", manifest.region)

    def _described(self) -> list[dict[str, Any]]:
        """The groups as Auto Scaling has them."""
        answer = self._autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=list(self._groups))
        found: list[dict[str, Any]] = answer["AutoScalingGroups"]
        for group in found:
            for one in group["Instances"]:
                self._home[one["InstanceId"]] = self._groups[group["AutoScalingGroupName"]]
        return found

    def members(self) -> list[str]:
        """Every instance that is in a group, leaving ones included."""
        return list(self._states())

    def members_by_group(self) -> dict[str, list[str]]:
        """Group, by its name in the stack -> every instance in it, leaving ones included."""
        return {
            self._groups[group["AutoScalingGroupName"]].name: [one["InstanceId"] for one in group["Instances"]]
            for group in self._described()
        }

    def _states(self) -> dict[str, str]:
        """Member -> life-cycle state."""
        return {one["InstanceId"]: one["LifecycleState"] for group in self._described() for one in group["Instances"]}

    def add(self, wanted: Mapping[str, int], token: str, show: Display) -> list[str]:
        """Launch nodes: `wanted` by the group's name in the stack. Raises CapacityError when fewer came than asked for
        in any group: `take_back` then ends all of them.

        `token` makes the calls idempotent: another launch has another one.
        """
        described = self._described()
        self._desired = {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in described}
        self._before = set(_instances(described))
        added: list[str] = []
        # What may have to wait comes first: nothing that is billed by the second waits with it.
        for group in sorted(self._groups.values(), key=lambda group: group.launched_by == "launch-instances"):
            count = wanted.get(group.name, 0)
            if not count:
                continue
            if group.launched_by == "launch-instances":
                came = launch_instances(self._autoscaling, group, count, token)
            else:
                desired = self._desired[group.autoscaling_group]
                came = raise_desired(self._autoscaling, group, desired, count, self._new_in(group), show)
            added += came.nodes
            if len(came.nodes) < count:
                where = f"group {group.name}: " if len(self._groups) > 1 else ""
                raise CapacityError(
                    f"{len(added)} of {sum(wanted.values())} nodes could be launched, so none stays: {where}{came.why}"
                )
        return added

    def _new_in(self, group: WorkerGroup) -> Callable[[], list[str]]:
        """Looks for what has come into this group since `add` began, and stays."""

        def look() -> list[str]:
            states = self._states().items()
            return [name for name, state in states if self._is_new(name, state) and self._home[name] == group]

        return look

    def _is_new(self, name: str, state: str) -> bool:
        assert self._before is not None
        return name not in self._before and not state.startswith(_LEAVING)

    def take_back(self, show: Display) -> list[str]:
        """End what has come into the groups since `add` began, also where an interrupt hid its answer, and ask for no
        more than before.

        Returns the nodes that could not be ended.
        """
        if self._before is None:
            return []
        described = self._described()
        new = [name for name in _instances(described) if name not in self._before]
        for group in described:
            if self._groups[group["AutoScalingGroupName"]].launched_by == "desired-capacity":
                self._ask_no_more(group, sum(one["InstanceId"] in new for one in group["Instances"]), show)
        stuck = [name for name in new if not self.end(name, show)]
        if gone := [name for name in new if name not in stuck]:
            show.line("nodes", f"taken back: {', '.join(gone)}")
        return stuck

    def _ask_no_more(self, group: dict[str, Any], new: int, show: Display) -> None:
        """Ask for what was there before and the new nodes that came: each that is ended takes its place with it."""
        name = group["AutoScalingGroupName"]
        wanted = self._desired[name] + new
        if group["DesiredCapacity"] <= wanted:
            return
        for attempt in range(TRIES):
            try:
                self._autoscaling.set_desired_capacity(
                    AutoScalingGroupName=name, DesiredCapacity=wanted, HonorCooldown=False
                )
                break
            except (BotoCoreError, ClientError) as error:  # the lease ends what still comes
                show.line(name, f"still asks for nodes: {error}")
                time.sleep(attempt * PAUSE_SECONDS)

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
        group = self._home[name]
        try:  # it has nothing to save: the hook need not hold it
            self._autoscaling.complete_lifecycle_action(
                AutoScalingGroupName=group.autoscaling_group,
                LifecycleHookName=group.lifecycle_hook,
                LifecycleActionResult="CONTINUE",
                InstanceId=name,
            )
        except (BotoCoreError, ClientError) as error:
            show.detail(name, str(error))  # the hook's own time-out lets it go
        return True

    def put_lease(self, until: float) -> None:
        """Let AWS itself end the groups' nodes at `until`, Unix time, whoever dies before."""
        put_lease(self._autoscaling, self._groups, until)

    def lease(self) -> float | None:
        """When AWS itself ends the groups' nodes, Unix time; None where no lease is on them."""
        return lease_of(self._autoscaling, self._groups)

    def empty(self) -> list[str]:
        """Send every group on its way to nothing; the members that are still there."""
        groups = self._described()
        for group in groups:
            if group["DesiredCapacity"]:
                self._autoscaling.set_desired_capacity(
                    AutoScalingGroupName=group["AutoScalingGroupName"], DesiredCapacity=0, HonorCooldown=False
                )
        return _instances(groups)


def _instances(groups: Iterable[dict[str, Any]]) -> list[str]:
    return [one["InstanceId"] for group in groups for one in group["Instances"]]
