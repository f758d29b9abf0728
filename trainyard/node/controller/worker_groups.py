"""The cluster's worker groups in Auto Scaling, as the controller uses them: members, lease, scaling to zero."""

import logging
from collections.abc import Collection, Iterable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.models.manifest import WorkerGroup
from trainyard.node.controller.account import Account

# Time to launch a replacement before an unhealthy node is terminated.
LAUNCH_FIRST_SECONDS = 5 * 60.0
LOG = logging.getLogger("controller")
_TERMINATING_STATES = ("Terminating", "Terminated", "Detaching", "Detached")


class WorkerGroups:
    """Auto Scaling groups of all workers of a cluster.

    `known_members`: members that the controller used before its restart.
    """

    def __init__(self, groups: Iterable[WorkerGroup], account: Account, known_members: Iterable[str] = ()) -> None:
        self._hooks = {group.autoscaling_group: group.lifecycle_hook for group in groups}
        self._names = [*self._hooks]
        self._account = account
        self._latest_members = set(known_members)
        self._unhealthy_since: dict[str, float] = {}
        self._described: dict[str, tuple[str, dict[str, Any]]] = {}  # instance -> its group and its description

    def members(self) -> list[str]:
        """Return the instances of all groups, without those that are terminating or detaching.

        AWS's responses are eventually consistent: a member that is missing from two consecutive responses has left.
        """
        self._described = {
            each["InstanceId"]: (group["AutoScalingGroupName"], each)
            for group in self._account.describe_groups(self._names)
            for each in group["Instances"]
        }
        present = [
            name
            for name, (_, each) in self._described.items()
            if not each["LifecycleState"].startswith(_TERMINATING_STATES)
        ]
        missing_once = sorted(self._latest_members - self._described.keys())
        self._latest_members = set(present)
        return [*present, *missing_once]

    @property
    def draining_nodes(self) -> frozenset[str]:
        """The instances that waited at their termination lifecycle hook at the last call of `members`."""
        return frozenset(
            name for name, (_, each) in self._described.items() if each["LifecycleState"] == "Terminating:Wait"
        )

    @property
    def instances(self) -> list[str]:
        """Instances of the groups, also terminating ones and those on standby, at the last call of `members`."""
        return sorted(self._described)

    def healthy_members(self, instances: Collection[str]) -> set[str]:
        """Return those of the instances that were in service and healthy at the last call of `members`."""
        healthy = {
            name
            for name, (_, each) in self._described.items()
            if (each["LifecycleState"], each["HealthStatus"]) == ("InService", "Healthy")
        }
        return healthy.intersection(instances)

    def remove(self, instance: str) -> None:
        """Terminate a member without replacement."""
        self._account.terminate_instance(instance)

    def mark_unhealthy(self, instance: str) -> None:
        """Mark a member unhealthy, so that its group replaces it. An instance that has left its group is ignored."""
        try:
            self._account.set_unhealthy(instance)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            LOG.info("%s was not marked unhealthy: %s", instance, error)

    def complete_terminations(self, instances: Collection[str]) -> None:
        """Let the termination of these instances continue, as far as they wait at the lifecycle hook of their group.

        Nodes have no permission to do so. AWS bills a node that does not power off until the timeout of the hook.
        """
        for instance in self.draining_nodes.intersection(instances):
            group, _ = self._described[instance]
            try:
                self._account.complete_lifecycle_action(group, self._hooks[group], instance)
            except (BotoCoreError, ClientError) as error:  # it may continue already; else the next call repeats it
                LOG.warning("the lifecycle action of %s was not completed: %s", instance, error)

    def without_running(self, instances: Collection[str]) -> set[str]:
        """Return those of the instances that do not run any more; none of them if EC2 does not respond."""
        if not instances:
            return set()
        try:
            return set(instances) - self._account.running_instances(instances)
        except (BotoCoreError, ClientError) as error:
            LOG.warning("the states of draining instances cannot be read: %s", error)
            return set()

    def terminate_unreplaced(self, unhealthy: Collection[str], now: float) -> None:
        """Terminate unhealthy members whose replacement has not started in time: there may be no capacity for it.

        Groups without reserved capacity launch a replacement before they terminate an unhealthy node. `now`: monotonic
        time, seconds.
        """
        present = self._latest_members.intersection(unhealthy)
        self._unhealthy_since = {node: self._unhealthy_since.get(node, now) for node in present}
        for node, since in self._unhealthy_since.items():
            if now < since + LAUNCH_FIRST_SECONDS:
                continue
            try:
                self._account.terminate_instance(node, is_replaced=True)
            except (BotoCoreError, ClientError) as error:  # such as a scaling activity: the next call repeats it
                LOG.warning("%s was not terminated: %s", node, error)

    def renew_lease(self, until: float) -> None:
        """Move the end of the lease to `until` (Unix time, seconds)."""
        self._account.put_lease(self._names, until)

    def failed_launches(self, since: float) -> list[str]:
        """Return the reasons of the launches that failed after `since` (Unix time); none when they cannot be read."""
        try:
            activities = [each for name in self._names for each in self._account.describe_activities(name)]
        except (BotoCoreError, ClientError) as error:
            LOG.warning("the scaling activities cannot be read: %s", error)
            return []
        failed = [each for each in activities if each["StatusCode"] in {"Failed", "Cancelled"}]
        recent = [each for each in failed if each["StartTime"].timestamp() >= since]
        return sorted({str(each.get("StatusMessage") or each["StatusCode"]) for each in recent})

    def cancel_scheduled_start(self) -> None:
        """Delete the scheduled launch of nodes, if any."""
        self._account.cancel_scheduled_start(self._names)

    def scale_to_zero(self) -> None:
        """Scale every group to zero. The lease stays: it terminates workers that a crash between the calls leaves."""
        for name in self._names:
            self._account.set_desired_capacity(name, 0)
