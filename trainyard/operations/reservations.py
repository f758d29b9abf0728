"""The capacity reservations of a stack's worker groups.

The launch creates one before it starts the nodes of a group: it has the capacity of all nodes, or is not created. The
controller extends it with the lease and cancels it at the end of the run. Replacements of failed nodes start in it.
"""

import time
from collections.abc import Callable, Collection, Iterable

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import ec2, reservations, tags
from trainyard.aws.reservations import CapacityReservation
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.operations.capacity_search import CapacityRequest, reserve_capacity
from trainyard.operations.errors import CapacityError
from trainyard.operations.pending_reservations import (
    cancel_reservations,
    extend_reservation,
    list_command,
    wait_until_active,
)
from trainyard.operations.progress import Display
from trainyard.operations.waiting import sleep_with_checks
from trainyard.quantity import quantity

# AWS returns the capacity of a terminated instance to its reservation after several minutes, and large GPU types shut
# down for up to 20 minutes before.
RETURN_TIMEOUT_SECONDS, RETURN_POLL_SECONDS = 40 * 60.0, 5.0


class GroupReservations:
    """The reservations of the worker groups of one stack, which have its tags.

    `launch_id`: the launch that uses them. `before_attempt` raises an error to end the search for capacity.
    """

    def __init__(
        self,
        manifest: Manifest,
        display: Display,
        launch_id: str,
        before_attempt: Callable[[], None] = lambda: None,
    ) -> None:
        self._manifest, self._display, self._before_attempt = manifest, display, before_attempt
        self._launch_id, self._region = launch_id, manifest.region
        self._created: list[str] = []
        self._sizes_before: dict[str, int] = {}

    def reserve(
        self, group: WorkerGroup, missing: int, hold_seconds: float, running: Iterable[str] = ()
    ) -> CapacityReservation:
        """Return a reservation with capacity for `missing` nodes and for the `running` nodes that are in it.

        Uses the group's existing reservation, or that of `trainyard reserve`, or creates a reservation for the missing
        nodes. It is in the zone of the running nodes, if any. `hold_seconds`: seconds until AWS ends the
        reservation. Raises CapacityError.
        """
        self._before_attempt()  # a launch that was replaced must not take the reservation of the later launch
        instances = ec2.describe_all_instances(self._region, running)
        zones = {instance["Placement"]["AvailabilityZone"] for instance in instances}
        zones = zones or {subnet.zone for subnet in group.subnets}
        existing = self._take_over_existing(group, zones)
        if existing is not None:
            used = sum(instance.get("CapacityReservationId") == existing.id for instance in instances)
            self._resize(existing, used + missing)
            self._extend(existing, time.time() + hold_seconds)
            text = f"uses {existing.id} in {existing.zone}, {quantity(used + missing, 'instance')}"
            self._display.line("capacity", text)
            return self.wait_for_capacity(existing.id, missing, hold_seconds)
        request = CapacityRequest(
            stack=self._manifest.stack,
            region=self._region,
            instance_type=group.instance_type,
            instances=missing,
            zones=[zone for zone in dict.fromkeys(subnet.zone for subnet in group.subnets) if zone in zones],
            placement_group_arn=group.placement_group_arn,
            tags={**self._tags(group), "Name": f"{self._manifest.project}-{self._manifest.stack}-{group.name}"},
            launch_id=self._launch_id,
            hold_seconds=hold_seconds,
            usd_per_hour=group.node_usd_per_hour,
            wait_minutes=self._manifest.limits.capacity_wait_minutes,
        )
        created = reserve_capacity(request, self._display, self._before_attempt)
        self._created.append(created.id)
        return created

    def _take_over_existing(self, group: WorkerGroup, zones: Collection[str]) -> CapacityReservation | None:
        """Tag an existing reservation of the group in these zones with this launch, and return it when it is active.

        A reservation of `trainyard reserve` is preferred. Cancels the group's other reservations, and those that do not
        fit. None without a reservation that fits and that EC2 activates. Raises CapacityError (_reject, _take_over).
        """
        held = reservations.find_reservations(self._region, tags.held_capacity_tags(self._manifest.stack_tag))
        fitting = []
        for reservation in [*held, *reservations.find_reservations(self._region, self._tags(group))]:
            placed = reservation.placement_group_arn == group.placement_group_arn
            if reservation.instance_type == group.instance_type and placed and reservation.zone in zones:
                fitting.append(reservation)
            else:
                self._reject(reservation, is_held=reservation in held)
        for number, reservation in enumerate(fitting, 1):
            if active := self._activate(reservation):
                self._cancel([each.id for each in fitting[number:]])
                return active
        return None

    def _activate(self, reservation: CapacityReservation) -> CapacityReservation | None:
        """Take over a reservation and return it when it is active; None if EC2 does not activate it."""
        self._take_over(reservation)
        reservation = wait_until_active(self._region, reservation, self._display, self._before_attempt)
        if reservation.state != "active":
            self._display.line("capacity", f"{reservation.id} in {reservation.zone} is {reservation.state}, not active")
            return None
        self._take_over(reservation)
        return reservation

    def _take_over(self, reservation: CapacityReservation) -> None:
        """Tag a reservation with this launch, so that an earlier launch does not cancel it. Raises CapacityError.

        While it is pending, an error is ignored: whether EC2 then accepts tags is not documented.
        """
        try:
            reservations.set_launch(self._region, reservation.id, self._launch_id)
        except ClientError as error:
            if reservation.state != "pending":
                raise CapacityError(
                    f"AWS does not tag {reservation.id}: {error}. Allow ec2:CreateTags (docs/deploy.md), then launch "
                    f"again: trainyard up -s {self._manifest.stack}"
                ) from error

    def _reject(self, reservation: CapacityReservation, is_held: bool) -> None:
        """Cancel a reservation that does not fit. Raises CapacityError for one of `trainyard reserve`."""
        if is_held:
            stack = self._manifest.stack
            raise CapacityError(
                f"{reservation.id} of trainyard reserve ({reservation.instances} x {reservation.instance_type} in "
                f"{reservation.zone}) does not fit the deployed stack: run trainyard up -s {stack}, or cancel it: "
                f"trainyard reserve -s {stack} --cancel"
            )
        self._cancel([reservation.id])

    def _resize(self, reservation: CapacityReservation, instances: int) -> None:
        if reservation.instances == instances:
            return
        if reservation.instances < instances:
            self._sizes_before[reservation.id] = reservation.instances  # also when the response is lost
        try:
            reservations.resize_reservation(self._region, reservation.id, instances)
        except ClientError as error:
            raise CapacityError(
                f"{reservation.id} in {reservation.zone} has {quantity(reservation.instances, 'instance')} and AWS "
                f"does not increase it to {instances}: {error}"
            ) from error

    def _extend(self, reservation: CapacityReservation, end: float) -> None:
        stack = self._manifest.stack
        action = (
            f"Launch again: trainyard up -s {stack}; or end the reservation first, and an active run with it: "
            f"trainyard stop -s {stack}"
        )
        extend_reservation(self._region, reservation, end, action)

    def wait_for_capacity(
        self, reservation_id: str, missing: int, hold_seconds: float | None = None
    ) -> CapacityReservation:
        """Return a reservation by id as soon as `missing` instances of it are available. Raises CapacityError.

        EC2 returns the capacity of terminated nodes to the reservation after several minutes. `hold_seconds`: keep its
        end about so many seconds away meanwhile; None: it is not the launch's reservation.
        """
        deadline, stack = time.monotonic() + RETURN_TIMEOUT_SECONDS, self._manifest.stack
        is_configured = reservation_id in {group.reservation for group in self._manifest.groups}
        while True:
            reservation = require_usable(self._region, stack, reservation_id, is_configured=is_configured)
            if reservation.state == "active" and reservation.available >= missing:
                return reservation
            state = f"{reservation.available} of {missing} instances are available"
            if reservation.state != "active":
                state = f"it is {reservation.state}"
            if time.monotonic() > deadline:
                raise CapacityError(
                    f"reservation {reservation_id}: {state} after {RETURN_TIMEOUT_SECONDS / 60:g} minutes. Launch "
                    f"again: trainyard up -s {stack}"
                )
            if hold_seconds and reservation.end and reservation.end < time.time() + hold_seconds / 2:
                self._extend(reservation, time.time() + hold_seconds)
            self._display.detail("capacity", f"reservation {reservation_id}: {state}, waiting")
            sleep_with_checks(RETURN_POLL_SECONDS, self._before_attempt)

    def _tags(self, group: WorkerGroup) -> dict[str, str]:
        return {tags.STACK: self._manifest.stack_tag, tags.ROLE: group.name}

    def rollback(self) -> None:
        """Cancel the reservations that this launch created, and restore the size of those that it enlarged.

        Those that a later launch uses are left as they are.
        """
        cancel_reservations(self._region, self._created, self._display, launch_id=self._launch_id)
        for reservation_id, instances in self._sizes_before.items():
            try:
                if reservations.read_reservation(self._region, reservation_id).launch_id != self._launch_id:
                    continue
                reservations.resize_reservation(self._region, reservation_id, instances)
                self._display.line("capacity", f"{reservation_id} has {quantity(instances, 'instance')} again")
            except (BotoCoreError, ClientError) as error:
                self._display.line(
                    "capacity", f"{reservation_id} was not reduced to {quantity(instances, 'instance')}: {error}"
                )

    def cancel_reservations_of_groups(self) -> None:
        """Cancel the groups' reservations, also those of earlier launches; display the held capacity, which remains."""
        try:
            for group in self._manifest.groups:
                self._cancel([each.id for each in reservations.find_reservations(self._region, self._tags(group))])
        except (BotoCoreError, ClientError) as error:
            text = f"the reservations of the launch were not cancelled and are billed until they end: {error}"
            command = list_command(self._region, self._manifest.stack_tag)
            self._display.line("capacity", f"{text}. To list them: {command}")
        if held := self.describe_held():
            self._display.line("capacity", held.strip())

    def describe_held(self) -> str:
        """Return a sentence on the capacity of `trainyard reserve`, with a trailing space; empty if there is none."""
        try:
            held = reservations.find_reservations(self._region, tags.held_capacity_tags(self._manifest.stack_tag))
        except (BotoCoreError, ClientError) as error:
            return f"A reservation of trainyard reserve, which is billed until it ends, could not be listed: {error}. "
        if not held:
            return ""
        prices = {group.instance_type: group.node_usd_per_hour for group in self._manifest.groups}
        price = sum(each.instances * prices.get(each.instance_type, 0.0) for each in held)
        described = ", ".join(f"{each.id} ({each.instances} x {each.instance_type} in {each.zone})" for each in held)
        end = f"trainyard reserve -s {self._manifest.stack} --cancel"
        return f"{described} of trainyard reserve costs {price:,.2f} USD per hour until it ends; to end it: {end}. "

    def _cancel(self, reservation_ids: Iterable[str]) -> None:
        """Cancel reservations. One that AWS does not cancel ends by itself, within an hour of its end date."""
        cancel_reservations(self._region, reservation_ids, self._display)


def require_usable(region: str, stack: str, reservation_id: str, *, is_configured: bool = True) -> CapacityReservation:
    """Return a reservation that accepts launches now or may later. Raises CapacityError for one that has ended.

    `is_configured`: the file of the stack names it.
    """
    reservation = reservations.read_reservation(region, reservation_id)
    if reason := reservations.describe_end(reservation_id, reservation.state):
        if not is_configured:
            raise CapacityError(f"{reason}: launch again: trainyard up -s {stack}")
        raise CapacityError(
            f"{reason}: set another reservation or Capacity Block (trainyard blocks -s {stack}) in the file of "
            f"the stack, then run trainyard up -s {stack}"
        )
    return reservation
