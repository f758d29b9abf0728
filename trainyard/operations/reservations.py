"""The capacity reservations of a stack's worker groups: the launch makes one before it starts the nodes of a group.

A reservation gives the capacity of all nodes or none, before a node is billed. The controller moves its end with the
lease and cancels it with the run; replacements of failed nodes start in it.
"""

import time
import uuid
from collections.abc import Iterable

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import reservations, tags
from trainyard.aws.reservations import CapacityReservation
from trainyard.models.manifest import Manifest, Subnet, WorkerGroup
from trainyard.operations.errors import CapacityError
from trainyard.operations.progress import Display

# Codes of CreateCapacityReservation that another zone, or a later request, may not return: shortages, and errors that
# boto3 would retry (API reference, "Error codes for the Amazon EC2 API").
_RETRY_CODES = frozenset(
    [
        "InsufficientInstanceCapacity",
        "InternalError",
        "InternalFailure",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "Unavailable",
        "Unsupported",
    ]
)
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 15.0, 300.0
# AWS returns the capacity of a terminated instance to its reservation after several minutes.
RETURN_TIMEOUT_SECONDS, RETURN_POLL_SECONDS = 15 * 60.0, 5.0


class GroupReservations:
    """The reservations of the worker groups of one stack, found by their tags."""

    def __init__(self, manifest: Manifest, display: Display) -> None:
        self._manifest, self._display = manifest, display
        self._region = manifest.region
        self._created: list[str] = []

    def reserve(self, group: WorkerGroup, instances: int, missing: int, end: float) -> CapacityReservation:
        """Return a reservation for `instances` nodes with capacity for the `missing` ones.

        Uses the group's existing reservation, or makes a new one in the first zone that has the capacity, and tries
        again until Limits.capacity_wait_minutes. `end`: Unix time of its end. Raises CapacityError.
        """
        existing = self._existing(group, instances, end)
        if existing is not None:
            return self.wait_for_capacity(existing.id, missing)
        minutes = self._manifest.limits.capacity_wait_minutes
        deadline, delay, attempt = time.monotonic() + minutes * 60, FIRST_RETRY_SECONDS, 1
        while True:
            failures = {}
            for subnet in group.subnets:
                self._display.detail("capacity", f"attempt {attempt}: {_describe(group, instances)} in {subnet.zone}")
                try:
                    return self._create(group, subnet, instances, end)
                except ClientError as error:
                    code = error.response["Error"]["Code"]
                    if code not in _RETRY_CODES:
                        raise CapacityError(f"AWS does not reserve {_describe(group, instances)}: {error}") from error
                    failures[subnet.zone] = code
            self._report(group, instances, failures, attempt, delay, deadline)
            time.sleep(delay)
            attempt, delay = attempt + 1, min(2 * delay, LAST_RETRY_SECONDS)

    def _report(
        self,
        group: WorkerGroup,
        instances: int,
        failures: dict[str, str],
        attempt: int,
        delay: float,
        deadline: float,
    ) -> None:
        """Report an attempt without capacity in any zone. Raises CapacityError if the next is after the deadline."""
        tried = ", ".join(f"{zone}: {code}" for zone, code in failures.items())
        if time.monotonic() + delay > deadline:
            minutes = self._manifest.limits.capacity_wait_minutes
            raise CapacityError(
                f"no Availability Zone has capacity for {_describe(group, instances)} after {attempt} attempts in "
                f"{minutes:g} minutes (capacity.wait_minutes): {tried}"
            )
        remaining = max(0.0, deadline - time.monotonic()) / 60
        text = f"attempt {attempt}: none for {_describe(group, instances)} ({tried}); next in {delay:.0f} s"
        self._display.line("capacity", f"{text}, for {remaining:.1f} more minutes")

    def _create(self, group: WorkerGroup, subnet: Subnet, instances: int, end: float) -> CapacityReservation:
        created = reservations.create_reservation(
            self._region,
            instance_type=group.instance_type,
            zone=subnet.zone,
            instances=instances,
            end=end,
            placement_group_arn=group.placement_group_arn,
            tags={**self._tags(group), "Name": f"{self._manifest.project}-{self._manifest.stack}-{group.name}"},
            token=str(uuid.uuid4()),
        )
        self._created.append(created.id)
        price = instances * group.node_usd_per_hour
        text = f"reserved {_describe(group, instances)} in {subnet.zone} ({created.id}), {price:,.2f} USD per hour"
        self._display.line("capacity", text)
        return created

    def _existing(self, group: WorkerGroup, instances: int, end: float) -> CapacityReservation | None:
        """Return the group's reservation, with this size and end; cancel reservations that do not fit the group."""
        found = reservations.find_reservations(self._region, self._tags(group))
        zones = {subnet.zone for subnet in group.subnets}
        for reservation in found:
            fits = (reservation.instance_type, reservation.placement_group_arn) == (
                group.instance_type,
                group.placement_group_arn,
            )
            if not fits or reservation.zone not in zones:
                self.cancel([reservation.id])
                continue
            if reservation.instances != instances:
                try:
                    reservations.resize_reservation(self._region, reservation.id, instances)
                except ClientError as error:
                    raise CapacityError(
                        f"{reservation.id} in {reservation.zone} has {reservation.instances} instances and AWS does "
                        f"not increase it to {instances}: {error}"
                    ) from error
            reservations.extend_reservations(self._region, [reservation.id], end)
            self._display.line("capacity", f"uses {reservation.id} in {reservation.zone}, {instances} instances")
            return reservation
        return None

    def wait_for_capacity(self, name: str, missing: int) -> CapacityReservation:
        """Return a reservation by id as soon as `missing` instances of it are available. Raises CapacityError.

        Earlier nodes of the stack, which are terminated, may have used them.
        """
        deadline = time.monotonic() + RETURN_TIMEOUT_SECONDS
        while True:
            found = [each for each in reservations.find_reservations(self._region, {}) if each.id == name]
            if found and found[0].available >= missing:
                return found[0]
            state = f"{found[0].available} of {missing} instances are available" if found else "it is not active"
            if time.monotonic() > deadline:
                raise CapacityError(f"reservation {name}: {state} after {RETURN_TIMEOUT_SECONDS / 60:g} minutes")
            self._display.detail("capacity", f"reservation {name}: {state}, waiting")
            time.sleep(RETURN_POLL_SECONDS)

    def _tags(self, group: WorkerGroup) -> dict[str, str]:
        return {tags.STACK: self._manifest.stack, tags.ROLE: group.name}

    def cancel_created(self) -> None:
        """Cancel the reservations that this launch made."""
        self.cancel(self._created)

    def cancel_all(self) -> list[str]:
        """Cancel every reservation of the stack; return their ids."""
        found = [each.id for each in reservations.find_reservations(self._region, {tags.STACK: self._manifest.stack})]
        self.cancel(found)
        return found

    def cancel(self, names: Iterable[str]) -> None:
        """Cancel reservations. One that AWS does not cancel ends by itself, within an hour of its end date."""
        for name in names:
            try:
                reservations.cancel_reservation(self._region, name)
                self._display.line("capacity", f"cancelled {name}")
            except (BotoCoreError, ClientError) as error:
                self._display.line("capacity", f"{name} was not cancelled and ends by itself: {error}")


def _describe(group: WorkerGroup, instances: int) -> str:
    return f"{instances} x {group.instance_type}"
