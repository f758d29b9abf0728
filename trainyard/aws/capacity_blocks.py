"""Capacity Blocks for ML: GPU instances that are bought in advance for some days."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError, HTTPClientError

from trainyard.aws import tags
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


@dataclass(frozen=True, kw_only=True)
class Block:
    """A Capacity Block by the id of its reservation. `created`: Unix time of its purchase."""

    id: str
    state: str
    instance_type: str
    zone: str
    instances: int
    created: float


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A purchased extension. `status`: of its payment. `purchased` and `end`: Unix times."""

    offering: str
    status: str
    purchased: float
    end: float


class UnknownPurchaseError(RuntimeError):
    """AWS did not respond to a purchase, or with HTTP 5xx: it may have sold it. A repetition could buy it twice."""


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


def purchase_offering(region: str, offering: str, stack: str) -> tuple[str, str]:
    """Purchase an offering, which is paid at once and not refundable; return id and state of its reservation.

    Its reservation has the tag of the stack. Raises UnknownPurchaseError, and ClientError for a refused purchase.
    """
    with _single_purchase():  # PurchaseCapacityBlock has no ClientToken: a retry could buy a second block
        response = client("ec2", region, max_attempts=1).purchase_capacity_block(
            CapacityBlockOfferingId=offering,
            InstancePlatform="Linux/UNIX",
            TagSpecifications=tags.tag_specifications({tags.STACK: stack}, ["capacity-reservation"]),
        )
    reservation = response["CapacityReservation"]
    return str(reservation["CapacityReservationId"]), str(reservation["State"])


def purchase_extension(region: str, reservation: str, offering: str) -> str:
    """Purchase an extension, which is paid at once and not refundable; return the status of its payment.

    Raises UnknownPurchaseError, and ClientError for a refused purchase.
    """
    with _single_purchase():
        response = client("ec2", region, max_attempts=1).purchase_capacity_block_extension(
            CapacityBlockExtensionOfferingId=offering, CapacityReservationId=reservation
        )
    return str(response["CapacityBlockExtensions"][0]["CapacityBlockExtensionStatus"])


@contextmanager
def _single_purchase() -> Iterator[None]:
    """Raise UnknownPurchaseError where a request that was sent has no response, or one of HTTP status 5xx."""
    try:
        yield
    except HTTPClientError as error:
        raise UnknownPurchaseError(str(error)) from error
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
            raise
        raise UnknownPurchaseError(str(error)) from error


def find_blocks(region: str) -> list[Block]:
    """Return the Capacity Blocks that are active, scheduled or payment-pending, the last purchase first."""
    pages = client("ec2", region).get_paginator("describe_capacity_reservations").paginate()
    blocks = [
        Block(
            id=each["CapacityReservationId"],
            state=each["State"],
            instance_type=each["InstanceType"],
            zone=each["AvailabilityZone"],
            instances=each["TotalInstanceCount"],
            created=each["CreateDate"].timestamp(),
        )
        for page in pages
        for each in page["CapacityReservations"]
        if each["ReservationType"] == "capacity-block" and each["State"] in ("active", "scheduled", "payment-pending")
    ]
    return sorted(blocks, key=lambda block: (-block.created, block.id))


def find_purchased_extensions(region: str, reservation: str) -> list[Extension]:
    """Return the extensions of a Capacity Block that were purchased, the last purchase first. Raises ClientError."""
    pages = client("ec2", region).get_paginator("describe_capacity_block_extension_history")
    extensions = [
        Extension(
            offering=each["CapacityBlockExtensionOfferingId"],
            status=each["CapacityBlockExtensionStatus"],
            purchased=each["CapacityBlockExtensionPurchaseDate"].timestamp(),
            end=each["CapacityBlockExtensionEndDate"].timestamp(),
        )
        for page in pages.paginate(CapacityReservationIds=[reservation])
        for each in page["CapacityBlockExtensions"]
    ]
    return sorted(extensions, key=lambda extension: -extension.purchased)


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
