"""Capacity Blocks for ML: GPU instances that are bought in advance for some days."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainyard.aws.clients import client


@dataclass(frozen=True, kw_only=True)
class Offering:
    """An offering of a Capacity Block or of an extension. `start` and `end`: Unix times. `usd`: price, paid at once."""

    id: str
    zone: str
    instances: int
    start: float
    end: float
    usd: float


def find_offerings(region: str, instance_type: str, instances: int, hours: int, earliest: float) -> list[Offering]:
    """Return the offerings of `hours` hours that start after `earliest` (Unix time), earliest first.

    Raises ClientError for a number of hours or instances that AWS does not offer.
    """
    pages = (
        client("ec2", region)
        .get_paginator("describe_capacity_block_offerings")
        .paginate(
            InstanceType=instance_type,
            InstanceCount=instances,
            CapacityDurationHours=hours,
            StartDateRange=datetime.fromtimestamp(earliest, UTC),
        )
    )
    return _parse(pages, "CapacityBlock", "")


def find_extensions(region: str, reservation: str, hours: int) -> list[Offering]:
    """Return the offerings that extend a Capacity Block by `hours` hours from its end.

    AWS extends an active or scheduled block, from 56 days to 1 hour before its end, by days up to 14 days and by weeks
    up to 182 days in total (EC2 user guide, "Extend Capacity Blocks"). Raises ClientError outside these limits.
    """
    pages = (
        client("ec2", region)
        .get_paginator("describe_capacity_block_extension_offerings")
        .paginate(CapacityReservationId=reservation, CapacityBlockExtensionDurationHours=hours)
    )
    return _parse(pages, "CapacityBlockExtension", "CapacityBlockExtension")


def purchase_offering(region: str, offering: str) -> tuple[str, str]:
    """Purchase an offering, which is paid at once and not refundable; return id and state of its reservation."""
    response = client("ec2", region, max_attempts=1).purchase_capacity_block(
        CapacityBlockOfferingId=offering, InstancePlatform="Linux/UNIX"
    )
    reservation = response["CapacityReservation"]
    return str(reservation["CapacityReservationId"]), str(reservation["State"])


def purchase_extension(region: str, reservation: str, offering: str) -> str:
    """Purchase an extension, which is paid at once and not refundable; return the status of its payment."""
    response = client("ec2", region, max_attempts=1).purchase_capacity_block_extension(
        CapacityBlockExtensionOfferingId=offering, CapacityReservationId=reservation
    )
    return str(response["CapacityBlockExtensions"][0]["CapacityBlockExtensionStatus"])


def find_blocks(region: str) -> list[str]:
    """Return the ids of the reservations of the Capacity Blocks that are active or scheduled."""
    pages = client("ec2", region).get_paginator("describe_capacity_reservations").paginate()
    described = (reservation for page in pages for reservation in page["CapacityReservations"])
    return sorted(
        reservation["CapacityReservationId"]
        for reservation in described
        if reservation["ReservationType"] == "capacity-block" and reservation["State"] in ("active", "scheduled")
    )


def _parse(pages: Iterable[Mapping[str, Any]], prefix: str, date_prefix: str) -> list[Offering]:
    """Return the offerings of responses whose keys start with `prefix`, those of dates with `date_prefix`."""
    offerings = [
        Offering(
            id=offering[f"{prefix}OfferingId"],
            zone=offering["AvailabilityZone"],
            instances=offering["InstanceCount"],
            start=offering[f"{date_prefix}StartDate"].timestamp(),
            end=offering[f"{date_prefix}EndDate"].timestamp(),
            usd=float(offering["UpfrontFee"]),
        )
        for page in pages
        for offering in page[f"{prefix}Offerings"]
    ]
    return sorted(offerings, key=lambda offering: (offering.start, offering.usd))
