"""Capacity of an Availability Zone that neither instances nor reservations use."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.ec2.reservations import reservations
from rehearsal.aws.faults import Capacity

# An instance that shuts down uses its host until it is terminated: an assumption. The guide states it for reservations,
# which have the capacity of a terminated instance again only minutes later ("Capacity Blocks for ML").
_STATES_WITH_CAPACITY = {"pending", "running", "shutting-down", "stopping"}


class _Use(NamedTuple):
    """Capacity in use: that of an instance or of a whole reservation. `group`: name of its placement group."""

    instance_type: str
    zone: str
    group: str
    instances: int


def free_capacity(backend: Any, instance_type: str, zone: str, count: int, group: str = "") -> int:
    """Return how many of `count` instances can be launched or reserved, in the cluster placement group if any."""
    limits = ACTIVE_FAULTS.capacity_limits(instance_type, zone)
    uses = list(_uses(backend)) if limits else []
    for limit in limits:
        if limit.cluster_placement and not group:
            continue
        used = sum(use.instances for use in uses if _counts(limit, use, group))
        count = min(count, max(0, limit.limit - used))
    return count


def _counts(limit: Capacity, use: _Use, group: str) -> bool:
    return (
        limit.instance_type in (None, use.instance_type)
        and limit.zone in (None, use.zone)
        and (not limit.cluster_placement or use.group == group)
    )


def _uses(backend: Any) -> Iterator[_Use]:
    """Yield the capacity in use. Capacity Blocks have separate capacity.

    An active or pending reservation uses the capacity of its instances. After its end they continue to run (EC2 user
    guide, "Work with Capacity Reservations"), so that they use capacity of the zone themselves.
    """
    reserved = {name for name, each in reservations(backend).items() if each.holds_capacity or each.is_block}
    for instance in backend.all_instances():
        if instance.state in _STATES_WITH_CAPACITY and instance.capacity_reservation_id not in reserved:
            group = instance.placement.group_name
            yield _Use(instance.instance_type, instance.availability_zone, group, 1)
    for reservation in reservations(backend).values():
        if reservation.holds_capacity and not reservation.is_block:
            group, count = reservation.placement_group or "", reservation.total_instance_count
            yield _Use(reservation.instance_type, reservation.availability_zone, group, count)
