"""Operations on the worker groups of a stack: list members, add nodes, roll back, terminate, scale to zero."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import autoscaling
from trainyard.aws.lease import put_lease, read_lease
from trainyard.aws.reservations import CapacityReservation
from trainyard.aws.scheduled_start import cancel_scheduled_start, put_scheduled_start, read_scheduled_start
from trainyard.aws.termination_schedule import put_termination_schedules
from trainyard.models.manifest import Manifest, Subnet, WorkerGroup
from trainyard.operations.errors import CapacityError
from trainyard.operations.node_launch import LaunchedNodes, increase_desired_capacity, launch_instances
from trainyard.operations.progress import Display
from trainyard.operations.scaling_activities import NodeTerminations, launch_deadline, set_desired_capacity
from trainyard.quantity import quantity

_TERMINATING_STATES = ("Terminat", "Detach")


class WorkerGroups:
    """The worker groups in a stack's manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._groups = {group.autoscaling_group: group for group in manifest.groups}
        self._earlier_members: set[str] | None = None
        self._launched: dict[str, None] = {}  # in the order of the launch
        self._earlier_capacity: dict[str, int] = {}
        self._group_of: dict[str, WorkerGroup] = {}
        self._region, self._termination = manifest.region, manifest.termination
        self._descriptions: list[dict[str, Any]] = []
        self._latest_response: dict[str, list[dict[str, Any]]] = {}

    def _describe(self) -> list[dict[str, Any]]:
        """Return the descriptions of the groups by Auto Scaling.

        A response may omit a member. A member is removed only if two consecutive responses omit it.
        """
        groups = autoscaling.describe_groups(self._region, self._groups)
        for group in groups:
            name, present = group["AutoScalingGroupName"], set(_instance_ids([group]))
            previous = self._latest_response.get(name, [])
            self._latest_response[name] = list(group["Instances"])
            group["Instances"] += [instance for instance in previous if instance["InstanceId"] not in present]
            for instance in group["Instances"]:
                self._group_of[instance["InstanceId"]] = self._groups[group["AutoScalingGroupName"]]
        self._descriptions = groups
        return groups

    def members(self) -> list[str]:
        """Return every instance of the groups, including those that are terminating."""
        return list(self.lifecycle_states())

    def members_by_group(self) -> dict[str, list[str]]:
        """Return the group's name in the stack -> its instances, including those that are terminating."""
        return {self._groups[group["AutoScalingGroupName"]].name: _instance_ids([group]) for group in self._describe()}

    def launched_nodes(self) -> list[str]:
        """Return the nodes that `add_nodes` has launched, without those of a zone that it has terminated again."""
        return list(self._launched)

    def lifecycle_states(self) -> dict[str, str]:
        """Return member -> lifecycle state in its Auto Scaling group."""
        return {
            instance["InstanceId"]: instance["LifecycleState"]
            for group in self._describe()
            for instance in group["Instances"]
        }

    def in_service(self) -> list[str]:
        """Return the instances of the groups that are in service."""
        return [name for name, state in self.lifecycle_states().items() if state == "InService"]

    def add_nodes(
        self,
        counts: Mapping[str, int],
        token: str,
        display: Display,
        reservations: Mapping[str, CapacityReservation] | None = None,
    ) -> list[str]:
        """Launch nodes; `counts` maps a group's name in the stack to the number of nodes to add.

        `token` makes the calls idempotent; each launch has its own. `reservations`: the capacity reservation of each
        group that has one. Raises CapacityError when a group launches fewer nodes than requested: `rollback` then
        terminates all that were added.
        """
        groups = self._describe()
        if any(len(group["Instances"]) < group["DesiredCapacity"] for group in groups):
            groups = self._describe()  # a member that a response omits must not be counted as an added member
        zone = next((instance["AvailabilityZone"] for group in groups for instance in group["Instances"]), None)
        self._earlier_capacity = {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in groups}
        self._earlier_members = set(_instance_ids(groups))
        added: list[str] = []
        # Groups that may wait for capacity are first, so that no on-demand instance is billed during the wait.
        for group in sorted(self._groups.values(), key=lambda group: group.launch_method == "launch-instances"):
            count = counts.get(group.name, 0)
            if not count:
                continue
            if group.launch_method == "launch-instances":
                reservation = (reservations or {}).get(group.name)
                zone = reservation.zone if reservation else zone
                target = reservation.id if reservation else None
                launched, zone = self._launch_in_zones(group, count, token, display, zone, target)
            else:
                # The launch template names the Capacity Block; an earlier launch may have set another reservation.
                self._set_launch_target(group, group.subnets[0], None)
                capacity = self._earlier_capacity[group.autoscaling_group]
                launched = increase_desired_capacity(
                    self._region, group, capacity, count, self._new_members_of(group), display
                )
            self._record_launched(group, launched.nodes)
            added += launched.nodes
            if len(launched.nodes) < count:
                where = f"group {group.name}: " if len(self._groups) > 1 else ""
                terminated = ", so all are terminated" if added else ""
                raise CapacityError(
                    f"AWS launched {len(added)} of {sum(counts.values())} requested nodes{terminated}: "
                    f"{where}{launched.reason}"
                )
        return added

    def _launch_in_zones(
        self, group: WorkerGroup, count: int, token: str, display: Display, zone: str | None, reservation: str | None
    ) -> tuple[LaunchedNodes, str | None]:
        """Launch in the first zone that has capacity, or in `zone`; return the nodes and their zone.

        All nodes of a cluster are in one zone. What a zone launches of a larger number is terminated, and the next zone
        is tried, as the Auto Scaling user guide advises ("Launch instances synchronously").
        """
        reasons: list[str] = []
        subnets = [subnet for subnet in group.subnets if zone in (None, subnet.zone)] or list(group.subnets)
        for subnet in subnets:
            self._set_launch_target(group, subnet, reservation)
            launched = launch_instances(self._region, group, subnet.id, count, token)
            self._record_launched(group, launched.nodes)
            reasons += launched.reasons
            if group.other_instance_types and launched.nodes:
                types = ", ".join(f"{number} x {name}" for name, number in sorted(launched.counts.items()))
                display.line(group.name, f"launched {types} in {subnet.zone}")
            if len(launched.nodes) == count or (launched.nodes and subnet == subnets[-1]):
                return LaunchedNodes(launched.nodes, reasons), subnet.zone
            display.line(
                group.name, f"{subnet.zone}: {len(launched.nodes)} of {quantity(count, 'node')}: {launched.reason}"
            )
            self._terminate_partial_launch(group, launched.nodes, display)
        return LaunchedNodes(reasons=reasons), zone

    def _record_launched(self, group: WorkerGroup, nodes: list[str]) -> None:
        """Record launched nodes: a description of the group may omit them."""
        self._launched |= dict.fromkeys(nodes)
        self._group_of |= dict.fromkeys(nodes, group)

    def _terminate_partial_launch(self, group: WorkerGroup, nodes: list[str], display: Display) -> None:
        """Terminate the nodes that a zone launched. Raises CapacityError if AWS does not accept a termination."""
        if not nodes:
            return
        if not_terminated := self.terminate(nodes, display):
            names = ", ".join(not_terminated)
            raise CapacityError(
                f"AWS launched {quantity(len(nodes), 'node')} of group {group.name} and did not terminate {names}"
            )
        for name in nodes:
            del self._launched[name]
        display.line(group.name, f"terminated, to try the next zone: {', '.join(nodes)}")

    def _set_launch_target(self, group: WorkerGroup, subnet: Subnet, reservation: str | None) -> None:
        """Set the group's subnet and reservation, also for the replacements of failed nodes."""
        name = group.autoscaling_group
        (description,) = [each for each in self._descriptions if each["AutoScalingGroupName"] == name]
        specification = description.get("CapacityReservationSpecification") or {}
        ids = (specification.get("CapacityReservationTarget") or {}).get("CapacityReservationIds") or [None]
        if ids != [reservation]:
            autoscaling.set_launch_target(self._region, name, subnet.id, reservation)
        elif description["VPCZoneIdentifier"] != subnet.id:
            autoscaling.set_subnet(self._region, name, subnet.id)

    def _new_members_of(self, group: WorkerGroup) -> Callable[[], list[str]]:
        """Return a function that lists the members that joined the group after `add_nodes` started."""

        def list_new_members() -> list[str]:
            states = self.lifecycle_states().items()
            return [name for name, state in states if self._is_new(name, state) and self._group_of[name] == group]

        return list_new_members

    def _is_new(self, name: str, state: str) -> bool:
        assert self._earlier_members is not None
        return name not in self._earlier_members and not state.startswith(_TERMINATING_STATES)

    def rollback(self, display: Display, *, superseded: bool = False) -> list[str]:
        """Terminate the members that `add_nodes` launched, and restore the desired capacities.

        Covers instances whose launch was interrupted before its response, but no instance with which Auto Scaling
        replaced a node of the run meanwhile. `superseded`: another launch has started a run since; then only instances
        are terminated whose launch had a response. Returns the nodes that AWS did not terminate.
        """
        if self._earlier_members is None:
            return []
        self._describe()
        deadline = launch_deadline()
        surplus: list[str] = []
        for group in self._describe():
            of_group = self._surplus_members(group, superseded=superseded)
            if self._groups[group["AutoScalingGroupName"]].launch_method == "desired-capacity" and not superseded:
                self._lower_desired_capacity(group, len(of_group), display, deadline)
            surplus += of_group
        not_terminated = self.terminate(surplus, display, deadline)
        if terminated := [name for name in surplus if name not in not_terminated]:
            display.line("nodes", f"rolled back, terminated: {', '.join(terminated)}")
        return not_terminated

    def _surplus_members(self, group: dict[str, Any], *, superseded: bool) -> list[str]:
        """Return the members of a group to terminate: those that were launched, and others above its earlier capacity.

        Auto Scaling may replace earlier members meanwhile: then not all new members are above that capacity.
        """
        assert self._earlier_members is not None
        of_group = self._groups[group["AutoScalingGroupName"]]
        states = {instance["InstanceId"]: instance["LifecycleState"] for instance in group["Instances"]}
        active = [name for name, state in states.items() if not state.startswith(_TERMINATING_STATES)]
        launched = [name for name in self._launched if self._group_of[name] == of_group]
        launched = [name for name in launched if name in active or name not in states]  # a response may omit it
        if superseded:
            return launched
        unknown = [name for name in active if name not in self._earlier_members and name not in launched]
        excess = max(0, len({*active, *launched}) - self._earlier_capacity[of_group.autoscaling_group])
        if of_group.launch_method == "desired-capacity":
            return [*launched, *unknown][:excess]  # its new members include replacements
        return [*launched, *unknown[: max(0, excess - len(launched))]]

    def _lower_desired_capacity(self, group: dict[str, Any], surplus: int, display: Display, deadline: float) -> None:
        """Cancel unfulfilled requests: each termination of a surplus member lowers the capacity by one."""
        name = group["AutoScalingGroupName"]
        capacity = self._earlier_capacity[name] + surplus
        if group["DesiredCapacity"] <= capacity:
            return
        try:
            set_desired_capacity(self._region, name, capacity, display, deadline)
        except (BotoCoreError, ClientError) as error:  # the lease terminates nodes that are launched later
            display.line(name, f"desired capacity could not be lowered to {capacity}: {error}")

    def terminate(self, names: Iterable[str], display: Display, deadline: float | None = None) -> list[str]:
        """Terminate members without replacement; return those whose termination AWS did not accept.

        `deadline`: time.monotonic() until which to retry while instances of a group are pending.
        """
        terminations = NodeTerminations(self._region, self._group_of, self.lifecycle_states, display)
        return terminations.terminate(names, deadline or launch_deadline())

    def usd_per_hour(self, names: Iterable[str]) -> dict[str, float]:
        """Return the maximum price of each of these members, USD an hour."""
        return {name: self._group_of[name].node_usd_per_hour for name in names}

    def put_lease(self, until: float) -> None:
        """Schedule the termination of all workers at `until` (Unix time, seconds); AWS itself runs it."""
        put_lease(self._region, self._groups, until)

    def put_termination_schedules(self, time: float, reservations: Iterable[str]) -> None:
        """Schedule the termination of all workers and the cancellation of reservations at `time` (Unix time, seconds).

        Then restores the maximum size of the groups. `trainyard stop` and a schedule set it to 0: the head cannot start
        nodes. It is not reduced below the desired capacity.
        """
        group, role = self._termination.schedule_group, self._termination.role_arn
        put_termination_schedules(self._region, group, role, time, self._groups, reservations)
        for description in self._describe():
            name = description["AutoScalingGroupName"]
            size = max(self._groups[name].max_size, description["DesiredCapacity"])
            if description["MaxSize"] != size:
                autoscaling.set_max_size(self._region, name, size)

    def prevent_launches(self) -> None:
        """Set the maximum size of the groups that exist to 0. The next launch restores it."""
        for group in self._describe():
            autoscaling.set_max_size(self._region, group["AutoScalingGroupName"], 0)

    def lease(self) -> float | None:
        """Return the end of the lease, Unix time in seconds; None when no group has a lease."""
        return read_lease(self._region, self._groups)

    def put_scheduled_start(self, start: float) -> None:
        """Schedule the launch of all nodes at `start` (Unix time, seconds); AWS itself runs it.

        The launch template names the Capacity Block; an earlier launch may have set another reservation and subnet.
        """
        self._describe()
        for group in self._groups.values():
            self._set_launch_target(group, group.subnets[0], None)
        put_scheduled_start(self._region, {name: group.nodes for name, group in self._groups.items()}, start)

    def scheduled_start(self) -> float | None:
        """Return the scheduled launch of nodes, Unix time in seconds; None when no group has one."""
        return read_scheduled_start(self._region, self._groups)

    def cancel_scheduled_start(self) -> bool:
        """Delete the scheduled launch of nodes; return whether there was one."""
        return cancel_scheduled_start(self._region, self._groups)

    def scale_to_zero(self) -> list[str]:
        """Set the desired capacity of every group to 0; return the members that still exist."""
        groups = self._describe()
        for group in groups:
            if group["DesiredCapacity"]:
                autoscaling.set_desired_capacity(self._region, group["AutoScalingGroupName"], 0)
        return _instance_ids(groups)


def _instance_ids(groups: Iterable[dict[str, Any]]) -> list[str]:
    return [instance["InstanceId"] for group in groups for instance in group["Instances"]]
