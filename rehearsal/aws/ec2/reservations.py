"""Capacity reservations: On-Demand Capacity Reservations and Capacity Blocks, their states, and their instances.

Sources: EC2 user guide, "Capacity Reservations" and "Capacity Blocks for ML"; API reference, CapacityReservation.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

from moto.core.resource_tagging import TaggedResource
from moto.ec2.models import EC2Backend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.block_payments import Payment
from rehearsal.aws.moto_extension import ec2_error, extend
from rehearsal.aws.timing import timing

# A reservation that was not created in the cluster placement group has some instances that do not fit into it: eksctl
# issue 7949 launched 11 of 16.
PLACEABLE_SHARE = 11 / 16
INTERRUPTIBLE_MARKET: Final = "interruptible-capacity-reservation"
EXISTING_STATES = {"pending", "running", "stopping", "stopped", "shutting-down"}

Assessment = Literal["assessing", "scheduled", "unsupported"]  # the result for a future-dated reservation
_ID = re.compile(r"cr-[0-9a-f]{17}")


class CapacityReservation(TaggedEC2Resource):
    """A reservation, with the fields of DescribeCapacityReservations as attributes. `start` and `end`: Unix times."""

    tenancy = "default"
    ephemeral_storage = False

    def __init__(
        self,
        backend: Any,
        reservation_id: str,
        *,
        instance_type: str,
        zone: str,
        count: int,
        block: bool = False,
        criteria: str = "open",
        start: float | None = None,
        end: float | None = None,
        platform: str = "Linux/UNIX",
        ebs_optimized: bool = False,
        placement_group: str | None = None,
        source_id: str | None = None,
        ultraserver_type: str | None = None,
    ) -> None:
        self.ec2_backend = backend
        self.id = self.capacity_reservation_id = reservation_id
        self.owner_id = backend.account_id
        self.instance_type, self.availability_zone, self.total_instance_count = instance_type, zone, count
        self.instance_platform, self.ebs_optimized = platform, ebs_optimized
        self.reservation_type = "capacity-block" if block else "default"
        self.capacity_block_id = f"cb-{reservation_id.removeprefix('cr-')}" if block else None
        self.ultraserver_type = ultraserver_type
        self.instance_match_criteria = "targeted" if block else criteria
        self.start, self.end, self.created = CLOCK.now() if start is None else start, end, CLOCK.now()
        self.placement_group = placement_group
        self.pending_until = 0.0  # Unix time
        self.fails = False  # when it is no longer pending
        self.instances_terminated = False
        self.payment: Payment | None = None  # of a Capacity Block; None: paid
        self.assessment: Assessment | None = None
        self.source_id = source_id  # of an interruptible reservation: the reservation that it was created from
        self.interruptible_capacity_allocation: Any = None
        self.cancelled_at: float | None = None
        self._sizes = [(self.start, count)]  # Unix time, and the number of instances from then on

    @property
    def is_block(self) -> bool:
        """Whether the reservation is a Capacity Block."""
        return self.reservation_type == "capacity-block"

    @property
    def interruptible(self) -> bool:
        """Whether the owner of the source reservation can reclaim the capacity."""
        return self.source_id is not None

    @property
    def interruption_info(self) -> dict[str, str] | None:
        """The source reservation, and the only type of interruption."""
        if self.source_id is None:
            return None
        return {"SourceCapacityReservationId": self.source_id, "InterruptionType": "adhoc"}

    @property
    def market_type(self) -> Literal["capacity-block", "interruptible-capacity-reservation"] | None:
        """MarketType that launches into the reservation require; None: that of On-Demand Instances."""
        return "capacity-block" if self.is_block else INTERRUPTIBLE_MARKET if self.interruptible else None

    @property
    def state(self) -> str:
        """State by the account's clock (API reference, CapacityReservation, State).

        A new reservation can be `pending` for up to 5 minutes (EC2 user guide, "View the state of a Capacity
        Reservation"). Launches may succeed meanwhile; here they do not, because "the capacity becomes available for use
        only once the Capacity Reservation enters the active state" (same guide, "Create a Capacity Reservation").
        Assumptions: a block whose payment is pending does not become active at its start; an unused reservation is
        billed while it is pending.
        """
        now = CLOCK.now()
        if self.cancelled_at is not None:
            return "cancelled"
        if self.assessment in ("assessing", "unsupported"):
            return self.assessment
        if self.payment is not None and self.payment.status != "succeeded":
            return f"payment-{self.payment.status}"
        if self._expires_at is not None and now >= self._expires_at:
            return "expired"
        if now < self.start:
            return "scheduled"
        if now < self.pending_until:
            return "pending"
        return "failed" if self.fails else "active"

    @property
    def holds_capacity(self) -> bool:
        """Whether the capacity is not available to others."""
        return self.state in ("active", "pending")

    @property
    def _expires_at(self) -> float | None:
        delay = 0.0 if self.is_block else timing().reservation_end_delay_seconds
        return None if self.end is None else self.end + delay

    def resize(self, count: int) -> None:
        """Set the number of instances."""
        self.total_instance_count = count
        self._sizes.append((CLOCK.now(), count))

    def unused_seconds(self) -> float:
        """Return the instance-seconds that were reserved and not used so far: they are billed like instances.

        Those of a failed reservation end with its pending state.
        """
        failed_at = self.pending_until if self.fails else None
        ends = [time for time in (self.cancelled_at, self._expires_at, failed_at, CLOCK.now()) if time is not None]
        end, changes = min(ends), [*self._sizes]
        reserved = sum(
            count * max(0.0, min(until, end) - since)
            for (since, count), (until, _) in zip(changes, [*changes[1:], (end, 0)], strict=True)
        )
        used = sum(
            max(0.0, min(instance.terminated_at or end, end) - instance.launched_at)
            for instance in self.ec2_backend.all_instances()
            if instance.launched_into == self.id
        )
        return max(0.0, float(reserved - used))

    @property
    def accepts_launches(self) -> bool:
        """Whether instances can be launched: a Capacity Block accepts none after EC2 terminates its instances."""
        return self.state == "active" and not self.instances_terminated

    @property
    def used_instance_count(self) -> int:
        """Instances that use the reservation's capacity, and terminated ones whose capacity is not available again.

        The capacity of a reclaimed instance is never available here again: it returns to the source reservation.
        """
        returned_at = CLOCK.now() - timing().reserved_capacity_return_seconds
        return sum(
            1
            for instance in self.ec2_backend.all_instances()
            if instance.capacity_reservation_id == self.id
            and (
                instance.state in EXISTING_STATES - {"stopped"}
                or instance.is_reclaimed
                or (instance.state == "terminated" and instance.terminated_at > returned_at)
            )
        )

    @property
    def available_instance_count(self) -> int:
        """Instances that can still be launched."""
        return max(0, self.total_instance_count - self.used_instance_count) if self.state == "active" else 0

    def available_in_group(self, group: str) -> int:
        """Return how many instances can be launched in a placement group (name; empty: none)."""
        if self.placement_group is not None:
            return self.available_instance_count if self.placement_group == group else 0
        if not group or self.is_block:
            return self.available_instance_count
        placeable = max(1, int(self.total_instance_count * PLACEABLE_SHARE)) - self.used_instance_count
        return max(0, min(self.available_instance_count, placeable))

    @property
    def placement_group_arn(self) -> str | None:
        """ARN of the cluster placement group that the reservation was created in."""
        backend, group = self.ec2_backend, self.placement_group
        prefix = f"arn:{backend.partition}:ec2:{backend.region_name}:{self.owner_id}:placement-group"
        return None if group is None else f"{prefix}/{group}"

    @property
    def capacity_reservation_arn(self) -> str:
        """ARN of the reservation."""
        backend = self.ec2_backend
        return f"arn:{backend.partition}:ec2:{backend.region_name}:{self.owner_id}:capacity-reservation/{self.id}"

    @property
    def availability_zone_id(self) -> str:
        """Id of the Availability Zone, such as use1-az1."""
        zones = self.ec2_backend.describe_availability_zones()
        return str(next(zone.zone_id for zone in zones if zone.name == self.availability_zone))

    @property
    def start_date(self) -> datetime:
        """Start, UTC."""
        return _utc(self.start)

    @property
    def end_date(self) -> datetime | None:
        """End, UTC; None for a reservation without end."""
        return None if self.end is None else _utc(self.end)

    @property
    def end_date_type(self) -> str:
        """`unlimited` or `limited`."""
        return "unlimited" if self.end is None else "limited"

    @property
    def create_date(self) -> datetime:
        """Creation, UTC."""
        return _utc(self.created)

    @property
    def tags(self) -> list[dict[str, str]]:
        """Tags as moto's serializer expects them."""
        tags: list[dict[str, str]] = self.get_tags()
        return tags

    def matches(self, instance_type: str, zone: str) -> bool:
        """Return whether the reservation is for this instance type and Availability Zone."""
        return (self.instance_type, self.availability_zone) == (instance_type, zone)


def reservations(backend: Any) -> dict[str, CapacityReservation]:
    """Return the capacity reservations of a region, by id."""
    by_id: dict[str, CapacityReservation] = vars(backend).setdefault("capacity_reservations", {})
    return by_id


def find_reservation(backend: Any, name: str) -> CapacityReservation:
    """Return the reservation with this id. Raises EC2's error if the id is malformed or unknown."""
    if not _ID.fullmatch(name):
        raise ec2_error("InvalidCapacityReservationId.Malformed", f'Invalid id: "{name}"')
    reservation = reservations(backend).get(name)
    if reservation is None:
        raise ec2_error("InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' does not exist")
    return reservation


def is_in_capacity_block(instance: Any) -> bool:
    """Return whether the instance runs in a Capacity Block."""
    reservation = reservations(instance.ec2_backend).get(instance.capacity_reservation_id or "")
    return reservation is not None and reservation.is_block


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC).replace(tzinfo=None)


def install() -> None:
    """Register the id prefix and the tags."""
    moto_resources = EC2Backend.iter_tagged_resources

    def iter_tagged_resources(self: Any) -> Iterator[TaggedResource]:
        """Yield the reservations too: the tagging API lists them, also those that have ended."""
        yield from moto_resources(self)
        for reservation in reservations(self).values():
            tags = {tag["key"]: tag["value"] for tag in reservation.get_tags()}
            yield TaggedResource(reservation.capacity_reservation_arn, tags, "ec2:capacity-reservation")

    extend(EC2Backend, iter_tagged_resources)
    # CreateTags accepts only ids with a prefix that moto knows.
    EC2_RESOURCE_TO_PREFIX["capacity-reservation"] = "cr"
    EC2_PREFIX_TO_RESOURCE["cr"] = "capacity-reservation"
