"""API actions on Capacity Blocks: offerings and their purchase.

Source: EC2 user guide, "Capacity Blocks for ML".
"""

import hashlib
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.ec2.utils import random_id

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.block_payments import Payment
from rehearsal.aws.ec2.reference import load_reference
from rehearsal.aws.ec2.reservation_actions import offering_zones, parse_time
from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.moto_extension import ec2_error, extend

_DAY_SECONDS, _HOUR_SECONDS = 86400, 3600
_BLOCK_BOUNDARY_SECONDS = 11.5 * _HOUR_SECONDS  # Capacity Blocks start and end at 11:30 UTC
BLOCK_HOURS = (*range(24, 14 * 24 + 1, 24), *range(21 * 24, 182 * 24 + 1, 7 * 24))
_MAXIMUM_INSTANCES = 64


def describe_capacity_block_offerings(self: Any) -> ActionResult:
    """Return one offering per zone, which starts at 11:30 UTC after the requested start.

    Capacity is unlimited. The price is that of On-Demand Instances, an assumption.
    """
    backend, instance_type = self.ec2_backend, self._get_param("InstanceType")
    count, hours = self._get_int_param("InstanceCount") or 1, self._get_int_param("CapacityDurationHours")
    if instance_type not in INSTANCE_TYPES or not INSTANCE_TYPES[instance_type].get("GpuInfo"):
        raise ec2_error(
            "InvalidParameterValue", f"The instance type {instance_type} is not available in Capacity Blocks."
        )
    if hours not in BLOCK_HOURS:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{hours}' for CapacityDurationHours.")
    if not 1 <= count <= _MAXIMUM_INSTANCES:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{count}' for InstanceCount.")
    earliest = max(CLOCK.now(), parse_time(self._get_param("StartDateRange")) or 0.0)
    start = earliest + (_BLOCK_BOUNDARY_SECONDS - earliest) % _DAY_SECONDS
    latest = parse_time(self._get_param("EndDateRange"))
    stored_offerings: dict[str, dict[str, Any]] = vars(backend).setdefault("_capacity_block_offers", {})
    offerings = []
    for zone in offering_zones(backend.region_name, instance_type):
        if latest is not None and start + hours * _HOUR_SECONDS > latest:
            continue
        offering = {
            "CapacityBlockOfferingId": offering_id(zone, instance_type, count, hours, start),
            "InstanceType": instance_type,
            "AvailabilityZone": zone,
            "InstanceCount": count,
            "StartDate": datetime.fromtimestamp(start, UTC).replace(tzinfo=None),
            "EndDate": datetime.fromtimestamp(start + hours * _HOUR_SECONDS, UTC).replace(tzinfo=None),
            "CapacityBlockDurationHours": hours,
            "UpfrontFee": block_price(instance_type, count, hours),
            "CurrencyCode": "USD",
            "Tenancy": "default",
        }
        end = start + hours * _HOUR_SECONDS
        stored_offerings[str(offering["CapacityBlockOfferingId"])] = {**offering, "start": start, "end": end}
        offerings.append(offering)
    return ActionResult({"CapacityBlockOfferings": offerings})


def offering_id(*values: object) -> str:
    """Return the id of an offering: the same offering keeps its id."""
    return f"cbo-{hashlib.sha256(repr(values).encode()).hexdigest()[:17]}"


def block_price(instance_type: str, count: int, hours: int) -> str:
    """Return the price in USD: that of On-Demand Instances, an assumption."""
    return f"{count * hours * load_reference().on_demand_usd.get(instance_type, 0.0):.2f}"


def purchase_capacity_block(self: Any) -> ActionResult:
    """Purchase an offering: its Capacity Block becomes a reservation, which is payment-pending at first.

    Code for an unknown offering: API reference, "Error codes for the Amazon EC2 API".
    """
    backend, name = self.ec2_backend, self._get_param("CapacityBlockOfferingId")
    offering = vars(backend).get("_capacity_block_offers", {}).pop(name, None)
    if offering is None:
        raise ec2_error("InvalidCapacityBlockOfferingIdNotFound", f"The Capacity Block offering {name} does not exist")
    reservation = CapacityReservation(
        backend,
        random_id("cr", 17),
        instance_type=offering["InstanceType"],
        zone=offering["AvailabilityZone"],
        count=offering["InstanceCount"],
        block=True,
        start=offering["start"],
        end=offering["end"],
        platform=self._get_param("InstancePlatform") or "Linux/UNIX",
    )
    reservation.add_tags(self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}))
    reservation.payment = Payment()
    reservations(backend)[reservation.id] = reservation
    return ActionResult({"CapacityReservation": reservation, "CapacityReservations": [reservation]})


def install() -> None:
    """Add the actions to moto."""
    extend(EC2Response, describe_capacity_block_offerings, purchase_capacity_block)
