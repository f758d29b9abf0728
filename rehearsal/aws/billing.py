"""Billed seconds of the account's instances: AWS bills each by the second, with a minimum of one minute."""

from collections.abc import Iterable

from rehearsal.aws.control_models import InstanceRecord, ReservationRecord
from trainyard.models.report import Billed, PurchaseOption

MINIMUM_BILLED_SECONDS = 60.0


def billed_seconds(instances: Iterable[InstanceRecord], now: float) -> float:
    """Return the billed instance-seconds until `now`, the account's Unix time: from launch to termination of each.

    An instance that a termination hook holds is still billed. A stopped instance counts as running; one that went from
    pending to terminated costs nothing.
    """
    return sum(
        max(
            MINIMUM_BILLED_SECONDS,
            (now if instance.terminated_time is None else min(now, instance.terminated_time)) - instance.launch_time,
        )
        for instance in instances
        if _ran(instance)
    )


def billed_by_type(instances: Iterable[InstanceRecord], now: float) -> list[Billed]:
    """Return the billed instance-seconds until `now` per instance type, zone and purchase option, sorted by them."""
    by_type: dict[tuple[str, str, PurchaseOption], list[InstanceRecord]] = {}
    for instance in filter(_ran, instances):
        by_type.setdefault((instance.instance_type, instance.zone, instance.purchase_option), []).append(instance)
    return [
        Billed(
            type=name,
            zone=zone,
            purchase_option=option,
            instances=len(records),
            seconds=round(billed_seconds(records, now), 3),
        )
        for (name, zone, option), records in sorted(by_type.items())
    ]


def unused_by_type(reservations: Iterable[ReservationRecord]) -> list[Billed]:
    """Return the instance-seconds that reservations held and no instance used, sorted by type and zone."""
    by_type: dict[tuple[str, str], list[ReservationRecord]] = {}
    for reservation in reservations:
        by_type.setdefault((reservation.instance_type, reservation.zone), []).append(reservation)
    return [
        Billed(
            type=name,
            zone=zone,
            purchase_option="on-demand",
            instances=max(record.instances for record in records),
            seconds=round(seconds, 3),
        )
        for (name, zone), records in sorted(by_type.items())
        if (seconds := sum(record.unused_seconds for record in records)) > 0
    ]


def _ran(instance: InstanceRecord) -> bool:
    return instance.terminated_time != instance.launch_time
