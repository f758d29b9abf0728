"""A simulated account: hosts, one worker group that replaces unhealthy instances, and the state of its instances."""

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from benchmarks.simulation.faults import HOUR, Fault
from benchmarks.simulation.storage import MemoryBucket
from benchmarks.simulation.timeline import Timeline
from benchmarks.simulation.times import Times
from trainyard.aws.s3 import Bucket
from trainyard.node.controller.account import Account

REGION = "us-east-1"
GROUP = "simulated-workers"
STATUS_CHECK_SECONDS = 60.0
_CAPACITY_RETRY_SECONDS = 60.0
_HOOK_SECONDS = 120.0  # heartbeat of the termination lifecycle hook, for a node that does not complete it
_GROUP_CHECK_SECONDS = 180.0
_HOSTS_PER_NETWORK_NODE = 16


@dataclass
class Host:
    """A server of AWS. `faults`: those that it has now; `cleared_at`: when the last of them ended."""

    name: str
    number: int
    faults: list[Fault] = field(default_factory=list)
    cleared_at: float = float("-inf")


@dataclass
class Instance:
    """An instance of the group. `silent_since`: it has been lost since then. `ended_at`: AWS bills it until then."""

    id: str
    host: Host
    launched_at: float
    state: str = "Pending"
    health: str = "Healthy"
    silent_since: float | None = None
    ended_at: float | None = None

    @property
    def is_member(self) -> bool:
        """Whether the group counts it to its capacity."""
        return self.state in ("Pending", "InService")


@dataclass(frozen=True)
class Flaws:
    """Responses of the account that are wrong although all nodes are healthy, as shares of its responses.

    `omission`: DescribeAutoScalingGroups omits a member. `error`: a call fails. `impaired`: a status check fails.
    """

    omission: float = 0.0
    error: float = 0.0
    impaired: float = 0.0
    seed: int = 0


class SimulatedAccount(Account):
    """An account with one worker group.

    `on_running` is called with an instance that runs. `on_terminating` is called with an instance that leaves the
    group; it returns the seconds after which its agent completes the lifecycle action; None: it does not.
    """

    def __init__(self, timeline: Timeline, times: Times, hosts: Sequence[str], flaws: Flaws) -> None:
        super().__init__(REGION)
        self.data = MemoryBucket("data")
        self.hosts = {name: Host(name, number) for number, name in enumerate(hosts)}
        self.instances: dict[str, Instance] = {}
        self.on_running: Callable[[Instance], None] = lambda _: None
        self.on_terminating: Callable[[Instance], float | None] = lambda _: None
        self.lease_end = float("inf")
        self.replaced: list[str] = []
        self.false_replacements: list[str] = []
        self.waits_for_capacity = 0
        self._timeline, self._times, self._flaws = timeline, times, flaws
        self._random = random.Random(flaws.seed)
        self._free = deque(self.hosts.values())
        self._desired = 0
        self._described: list[dict[str, Any]] | None = None
        self._omitted: str | None = None
        self._flaky_until: dict[str, float] = {}  # healthy instance -> time until which a status check has failed

    # Calls of the controller

    def bucket(self, name: str) -> Bucket:
        """Return the data bucket."""
        return self.data

    def describe_groups(self, groups: Collection[str]) -> list[dict[str, Any]]:
        """Return the group. A flaw never omits the same member from two consecutive responses."""
        self._fail_sometimes("DescribeAutoScalingGroups")
        if self._described is None:
            self._described = [
                {"InstanceId": each.id, "LifecycleState": each.state, "HealthStatus": each.health}
                for each in self.instances.values()
                if each.state != "Terminated"
            ]
        members, omitted = self._described, None
        if members and self._random.random() < self._flaws.omission:
            omitted = self._random.choice(members)["InstanceId"]
            if omitted != self._omitted:
                members = [each for each in members if each["InstanceId"] != omitted]
        self._omitted = omitted
        return [{"AutoScalingGroupName": GROUP, "Instances": members}]

    def describe_activities(self, group: str) -> list[dict[str, Any]]:
        """Return no activities: launches do not fail."""
        return []

    def set_desired_capacity(self, group: str, instances: int) -> None:
        """Launch or terminate instances until the group has this number."""
        self._desired = instances
        self._launch_missing()
        members = [each for each in self.instances.values() if each.is_member]
        for each in members[instances:]:
            self._terminate(each)

    def set_unhealthy(self, instance: str) -> None:
        """Let the group replace a member."""
        member = self._member(instance)
        member.health, self._described = "Unhealthy", None
        self.replaced.append(instance)
        if not self._is_faulty(member):
            self.false_replacements.append(instance)
        self._timeline.schedule(self._times.group_reaction.seconds, lambda: self._replace(member))

    def terminate_instance(self, instance: str, *, is_replaced: bool = False) -> None:
        """Terminate a member, without a replacement unless `is_replaced`."""
        member = self._member(instance)
        self._desired -= 0 if is_replaced else 1
        self._terminate(member)
        self._launch_missing()

    def complete_lifecycle_action(self, group: str, hook: str, instance: str) -> None:
        """Terminate an instance that waits at the lifecycle hook."""
        self._end(self.instances[instance])

    def running_instances(self, instances: Collection[str]) -> set[str]:
        """No instance that has left its group runs."""
        return set()

    def put_lease(self, groups: Sequence[str], until: float) -> None:
        """Move the end of the lease."""
        self.lease_end = until

    def cancel_scheduled_start(self, groups: Sequence[str]) -> None:
        """The group has no scheduled start."""

    def find_impaired_instances(self, instances: Collection[str]) -> dict[str, str]:
        """Return the lost instances, from the time when their status checks have failed."""
        self._fail_sometimes("DescribeInstanceStatus")
        since = self._timeline.now - self._times.status_check.seconds
        known = [self.instances[name] for name in instances]
        impaired = [each for each in known if each.silent_since is not None and each.silent_since <= since]
        reasons = {each.id: "EC2 reports InstanceStatus impaired" for each in impaired}
        ended = {each.id: "EC2 reports the state terminated" for each in known if each.ended_at is not None}
        now = self._timeline.now
        for each in known:  # a check is repeated after a minute, and does not fail twice in a row
            if (
                now >= self._flaky_until.get(each.id, 0.0) + STATUS_CHECK_SECONDS
                and self._random.random() < self._flaws.impaired
            ):
                self._flaky_until[each.id] = now + STATUS_CHECK_SECONDS
        flaky = [each.id for each in known if now < self._flaky_until.get(each.id, 0.0)]
        return reasons | ended | dict.fromkeys(flaky, "EC2 reports InstanceStatus impaired")

    def describe_network_nodes(self, instances: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return two layers of network nodes."""
        numbers = {name: self.instances[name].host.number // _HOSTS_PER_NETWORK_NODE for name in instances}
        return {name: ("nn-0", f"nn-{number}") for name, number in numbers.items()}

    # What happens in the account

    def add_fault(self, host: Host, fault: Fault) -> None:
        """A host has a fault from now on. AWS launches no instance on it until its end."""
        host.faults.append(fault)

    def end_fault(self, host: Host, fault: Fault) -> None:
        """A fault of a host has ended. A repaired host is used before hosts that were not used yet."""
        if fault not in host.faults:
            return
        host.faults.remove(fault)
        if fault.kind.ended_by != "attempt":  # the software's
            host.cleared_at = self._timeline.now
        if not host.faults and host in self._free:
            self._free.remove(host)
            self._free.appendleft(host)

    def lose(self, instance: Instance) -> None:
        """An instance does not respond any more. Its group replaces it when its status checks have failed for a while.

        Amazon EC2 Auto Scaling user guide, "About the health checks": status checks are the default health check.
        """
        instance.silent_since = self._timeline.now
        since = self._timeline.now
        self._timeline.schedule(
            self._times.status_check.seconds + _GROUP_CHECK_SECONDS,
            lambda: self._replace(instance) if instance.silent_since == since else None,
        )

    def retire(self, instance: Instance) -> None:
        """AWS retires an instance: its group replaces it, as its health checks include scheduled events."""
        self._replace(instance)

    def find_instance(self, host: Host) -> Instance | None:
        """Return the instance that runs on a host."""
        on_host = (each for each in self.instances.values() if each.host is host and each.ended_at is None)
        return next(on_host, None)

    def running(self) -> list[Instance]:
        """Return the instances that AWS bills."""
        return [each for each in self.instances.values() if each.ended_at is None]

    def billed_seconds(self) -> float:
        """Return the seconds of all instances until now."""
        now = self._timeline.now
        ends = (
            (now if each.ended_at is None else each.ended_at) - each.launched_at for each in self.instances.values()
        )
        return sum(ends)

    def _member(self, name: str) -> Instance:
        instance = self.instances.get(name)
        if instance is None or not instance.is_member:
            message = f"The instance {name} is not part of an Auto Scaling group"
            raise ClientError({"Error": {"Code": "ValidationError", "Message": message}}, "SetInstanceHealth")
        return instance

    def _is_faulty(self, instance: Instance) -> bool:
        """Return whether the host has a fault, or had one in the last hour."""
        host = instance.host
        return bool(host.faults) or (host.cleared_at >= max(instance.launched_at, self._timeline.now - HOUR))

    def _fail_sometimes(self, operation: str) -> None:
        if self._random.random() < self._flaws.error:
            raise ClientError({"Error": {"Code": "RequestLimitExceeded", "Message": "simulated"}}, operation)

    def _replace(self, instance: Instance) -> None:
        if instance.is_member:
            self._terminate(instance)
            self._launch_missing()

    def _launch_missing(self) -> None:
        members = sum(each.is_member for each in self.instances.values())
        for _ in range(self._desired - members):
            host = next((each for each in self._free if not each.faults), None)
            if host is None:
                self.waits_for_capacity += 1
                self._timeline.schedule(_CAPACITY_RETRY_SECONDS, self._launch_missing)
                return
            self._free.remove(host)
            instance = Instance(f"i-{len(self.instances):017x}", host, self._timeline.now)
            self.instances[instance.id] = instance
            self._timeline.schedule(self._times.pending.seconds, partial(self._start, instance))
        self._described = None

    def _start(self, instance: Instance) -> None:
        if instance.state == "Pending":
            instance.state, self._described = "InService", None
            self.on_running(instance)

    def _terminate(self, instance: Instance) -> None:
        instance.state, self._described = "Terminating:Wait", None
        delay = self.on_terminating(instance)
        self._timeline.schedule(_HOOK_SECONDS if delay is None else delay, lambda: self._end(instance))

    def _end(self, instance: Instance) -> None:
        if instance.ended_at is not None:
            return
        instance.state, instance.ended_at, self._described = "Terminated", self._timeline.now, None
        self._free.append(instance.host)
