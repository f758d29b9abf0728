"""Capacity reservations: On-Demand ones and Capacity Blocks, their states in time, and the instances that run in them.

Sources: EC2 user guide, "Capacity Reservations" and "Capacity Blocks for ML"; API reference, CapacityReservation.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2.terminations import reclaim

# "Amazon EC2 will terminate any instances that are still running 30 minutes before the end time of the Capacity Block."
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/launch-template-capacity-blocks.html
BLOCK_ENDS_SECONDS = 1800.0
LIVING = {"pending", "running", "stopping", "stopped", "shutting-down"}


class CapacityReservation(TaggedEC2Resource):
    """One reservation; its attributes are DescribeCapacityReservations' fields. `start` and `end` are Unix times."""

    tenancy = "default"
    ephemeral_storage = False

    def __init__(
        self,
        backend: Any,
        name: str,
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
    ) -> None:
        self.ec2_backend = backend
        self.id = self.capacity_reservation_id = name
        self.owner_id = backend.account_id
        self.instance_type, self.availability_zone, self.total_instance_count = instance_type, zone, count
        self.instance_platform, self.ebs_optimized = platform, ebs_optimized
        self.reservation_type = "capacity-block" if block else "default"
        self.instance_match_criteria = "targeted" if block else criteria
        self.start, self.end, self.created = CLOCK.now() if start is None else start, end, CLOCK.now()
        self.cancelled = self.emptied = False

    @property
    def is_block(self) -> bool:
        return self.reservation_type == "capacity-block"

    @property
    def state(self) -> str:
        now = CLOCK.now()
        if self.cancelled:
            return "cancelled"
        if self.end is not None and now >= self.end:
            return "expired"
        return "active" if now >= self.start else "scheduled"

    @property
    def open_for_launches(self) -> bool:
        """Whether instances may be launched into it: a block takes none once its instances are being ended."""
        return self.state == "active" and not self.emptied

    @property
    def used(self) -> int:
        return sum(
            1
            for instance in self.ec2_backend.all_instances()
            if instance.capacity_reservation_id == self.id and instance.state in LIVING - {"stopped"}
        )

    @property
    def available_instance_count(self) -> int:
        return max(0, self.total_instance_count - self.used) if self.state == "active" else 0

    @property
    def capacity_reservation_arn(self) -> str:
        backend = self.ec2_backend
        return f"arn:{backend.partition}:ec2:{backend.region_name}:{self.owner_id}:capacity-reservation/{self.id}"

    @property
    def availability_zone_id(self) -> str:
        zones = self.ec2_backend.describe_availability_zones()
        return str(next(zone.zone_id for zone in zones if zone.name == self.availability_zone))

    @property
    def start_date(self) -> datetime:
        return _utc(self.start)

    @property
    def end_date(self) -> datetime | None:
        return None if self.end is None else _utc(self.end)

    @property
    def end_date_type(self) -> str:
        return "unlimited" if self.end is None else "limited"

    @property
    def create_date(self) -> datetime:
        return _utc(self.created)

    @property
    def tags(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.get_tags()
        return found

    def fits(self, instance_type: str, zone: str) -> bool:
        return (self.instance_type, self.availability_zone) == (instance_type, zone)


def reservations(backend: Any) -> dict[str, CapacityReservation]:
    """The capacity reservations of a region, by id."""
    found: dict[str, CapacityReservation] = vars(backend).setdefault("capacity_reservations", {})
    return found


def block_of(instance: Any) -> bool:
    """Whether the instance runs in a Capacity Block."""
    held = reservations(instance.ec2_backend).get(instance.capacity_reservation_id or "")
    return held is not None and held.is_block


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC).replace(tzinfo=None)


def _endings() -> Iterator[Due]:
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        for held in reservations(backend).values():
            if held.is_block and held.end is not None and not held.emptied:
                yield held.end - BLOCK_ENDS_SECONDS, lambda held=held: _empty(held)  # type: ignore[misc]


def _empty(held: CapacityReservation) -> None:
    """EC2 ends what still runs in a block; a group that it belonged to learns of it."""
    held.emptied = True
    for instance in [each for each in held.ec2_backend.all_instances() if each.capacity_reservation_id == held.id]:
        if instance.state != "terminated":
            reclaim(instance, "Server.CapacityBlockEnding: the Capacity Block ends in 30 minutes")


def install() -> None:
    # CreateTags takes only ids whose prefix moto knows.
    EC2_RESOURCE_TO_PREFIX["capacity-reservation"] = "cr"
    EC2_PREFIX_TO_RESOURCE["cr"] = "capacity-reservation"
    CLOCK.watch(_endings)
