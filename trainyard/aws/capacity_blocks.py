"""Capacity Blocks for ML: GPU instances that are bought in advance for some days."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainyard.aws.clients import client


@dataclass(frozen=True, kw_only=True)
class Offering:
    """An offer of a Capacity Block. `start` and `end`: Unix times. `usd`: price, paid at once."""

    id: str
    instance_type: str
    zone: str
    instances: int
    start: float
    end: float
    usd: float


@dataclass(frozen=True, kw_only=True)
class ExtensionOffering:
    """An offer to extend a Capacity Block by `end` - `start`, Unix times; `usd`: price, paid at once."""

    id: str
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
    offerings = [_parse(offering) for page in pages for offering in page["CapacityBlockOfferings"]]
    return sorted(offerings, key=lambda offering: (offering.start, offering.usd))


def purchase_offering(region: str, offering: str) -> str:
    """Purchase an offering, which is paid at once and not refundable; return the id of its capacity reservation."""
    response = client("ec2", region, max_attempts=1).purchase_capacity_block(
        CapacityBlockOfferingId=offering, InstancePlatform="Linux/UNIX"
    )
    return str(response["CapacityReservation"]["CapacityReservationId"])


def find_extensions(region: str, reservation: str, hours: int) -> list[ExtensionOffering]:
    """Return the offers to extend a Capacity Block by `hours` hours, earliest end first.

    AWS extends an active or scheduled block, from 56 days to 1 hour before its end, by days up to 14 days and by weeks
    up to 182 days in total (EC2 user guide, "Extend Capacity Blocks"). Raises ClientError outside these limits.
    """
    pages = (
        client("ec2", region)
        .get_paginator("describe_capacity_block_extension_offerings")
        .paginate(CapacityReservationId=reservation, CapacityBlockExtensionDurationHours=hours)
    )
    offerings = [
        ExtensionOffering(
            id=offering["CapacityBlockExtensionOfferingId"],
            instances=offering["InstanceCount"],
            start=offering["CapacityBlockExtensionStartDate"].timestamp(),
            end=offering["CapacityBlockExtensionEndDate"].timestamp(),
            usd=float(offering["UpfrontFee"]),
        )
        for page in pages
        for offering in page["CapacityBlockExtensionOfferings"]
    ]
    return sorted(offerings, key=lambda offering: (offering.end, offering.usd))


def purchase_extension(region: str, reservation: str, offering: str) -> str:
    """Purchase an extension, which is paid at once and not refundable; return the status of its payment."""
    response = client("ec2", region, max_attempts=1).purchase_capacity_block_extension(
        CapacityBlockExtensionOfferingId=offering, CapacityReservationId=reservation
    )
    return str(response["CapacityBlockExtensions"][0]["CapacityBlockExtensionStatus"])


def _parse(offering: dict[str, Any]) -> Offering:
    return Offering(
        id=offering["CapacityBlockOfferingId"],
        instance_type=offering["InstanceType"],
        zone=offering["AvailabilityZone"],
        instances=offering["InstanceCount"],
        start=offering["StartDate"].timestamp(),
        end=offering["EndDate"].timestamp(),
        usd=float(offering["UpfrontFee"]),
    )
