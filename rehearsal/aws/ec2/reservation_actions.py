"""API actions on capacity reservations and Capacity Blocks: create, describe, cancel, offer and purchase."""

import re
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.ec2.utils import generic_filter, random_id

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.quotas import check_on_demand
from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.moto_extension import ec2_error, extend

_ID = re.compile(r"cr-[0-9a-f]{17}")
_DAY_SECONDS, _HOUR_SECONDS = 86400, 3600
_BLOCK_BOUNDARY_SECONDS = 11.5 * _HOUR_SECONDS  # Capacity Blocks start and end at 11:30 UTC
_BLOCK_HOURS = (*range(24, 14 * 24 + 1, 24), *range(21 * 24, 182 * 24 + 1, 7 * 24))
_MAXIMUM_INSTANCES = 64
_SUPPORTED_KEYS = frozenset(
    [
        "AvailabilityZone",
        "ClientToken",
        "EbsOptimized",
        "EndDate",
        "EndDateType",
        "InstanceCount",
        "InstanceMatchCriteria",
        "InstancePlatform",
        "InstanceType",
        "TagSpecifications",
        "Tenancy",
    ]
)


def find_reservation(backend: Any, name: str) -> CapacityReservation:
    """Return the reservation with this id. Raises EC2's error if the id is malformed or unknown."""
    if not _ID.fullmatch(name):
        raise ec2_error("InvalidCapacityReservationId.Malformed", f'Invalid id: "{name}"')
    reservation = reservations(backend).get(name)
    if reservation is None:
        raise ec2_error("InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' does not exist")
    return reservation


def create_capacity_reservation(self: Any) -> ActionResult:
    """Create an On-Demand Capacity Reservation, once per client token."""
    backend, parameters = self.ec2_backend, dict(self._get_params())
    unsupported = (
        {key for key, value in parameters.items() if value not in (None, "", [])} - _SUPPORTED_KEYS - {"DryRun"}
    )
    if unsupported or parameters.get("Tenancy", "default") != "default":
        raise NotImplementedError(
            f"a capacity reservation with {', '.join(sorted(unsupported)) or 'a dedicated tenancy'}"
        )
    self.error_on_dryrun()
    for key in ("InstanceType", "InstancePlatform", "InstanceCount", "AvailabilityZone"):
        if not parameters.get(key):
            raise ec2_error("MissingParameter", f"The request must contain the parameter {key}")
    instance_type, zone = parameters["InstanceType"], parameters["AvailabilityZone"]
    count = int(parameters["InstanceCount"])
    if instance_type not in INSTANCE_TYPES:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    if count < 1:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{count}' for InstanceCount.")
    criteria = parameters.get("InstanceMatchCriteria") or "open"
    if criteria not in {"open", "targeted"}:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{criteria}' for InstanceMatchCriteria.")
    end = _parse_time(parameters.get("EndDate"))
    if (parameters.get("EndDateType") or ("unlimited" if end is None else "limited")) != _end_date_type(end):
        raise ec2_error("InvalidParameterCombination", "An EndDate and the EndDateType limited require each other.")
    if end is not None and end <= CLOCK.now():
        raise ec2_error("InvalidParameterValue", "The EndDate must be in the future.")
    if zone not in _offering_zones(backend.region_name, instance_type):
        raise ec2_error(
            "Unsupported", f"The instance type {instance_type} is not supported in the Availability Zone {zone}."
        )
    tokens: dict[str, CapacityReservation] = vars(backend).setdefault("_capacity_reservation_tokens", {})
    token = str(parameters.get("ClientToken") or "")
    reservation = tokens.get(token)
    if reservation is None:
        check_on_demand(backend, instance_type, count, "InstanceLimitExceeded")
        reservation = CapacityReservation(
            backend,
            random_id("cr", 17),
            instance_type=instance_type,
            zone=zone,
            count=count,
            criteria=criteria,
            end=end,
            platform=parameters["InstancePlatform"],
            ebs_optimized=str(parameters.get("EbsOptimized")).lower() == "true",
        )
        reservation.add_tags(self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}))
        reservations(backend)[reservation.id] = reservation
        if token:
            tokens[token] = reservation
    return ActionResult({"CapacityReservation": reservation})


def describe_capacity_reservations(self: Any) -> ActionResult:
    """Return reservations by id and filter."""
    names = self._get_param("CapacityReservationIds", [])
    backend = self.ec2_backend
    selected = [find_reservation(backend, name) for name in names] or list(reservations(backend).values())
    return ActionResult({"CapacityReservations": generic_filter(self._filters_from_querystring(), selected)})


def cancel_capacity_reservation(self: Any) -> ActionResult:
    """Cancel an active reservation. Its instances continue as On-Demand Instances."""
    reservation = find_reservation(self.ec2_backend, self._get_param("CapacityReservationId"))
    if reservation.is_block:  # "You can't modify or cancel a Capacity Block." (API reference, without the error code)
        raise ec2_error("OperationNotPermitted", f"The Capacity Block {reservation.id} can't be cancelled.")
    if reservation.state != "active":
        raise ec2_error(
            "InvalidCapacityReservationState",
            f"The capacity reservation {reservation.id} is {reservation.state} and can't be cancelled.",
        )
    reservation.cancelled = True
    for instance in self.ec2_backend.all_instances():
        if instance.capacity_reservation_id == reservation.id:
            instance.capacity_reservation_id = None
    return ActionResult({"Return": True})


def describe_capacity_block_offerings(self: Any) -> ActionResult:
    """Return one offering per zone, which starts at 11:30 UTC after the requested start. Capacity is unlimited."""
    backend, instance_type = self.ec2_backend, self._get_param("InstanceType")
    count, hours = self._get_int_param("InstanceCount") or 1, self._get_int_param("CapacityDurationHours")
    if instance_type not in INSTANCE_TYPES or not INSTANCE_TYPES[instance_type].get("GpuInfo"):
        raise ec2_error(
            "InvalidParameterValue", f"The instance type {instance_type} is not available in Capacity Blocks."
        )
    if hours not in _BLOCK_HOURS:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{hours}' for CapacityDurationHours.")
    if not 1 <= count <= _MAXIMUM_INSTANCES:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{count}' for InstanceCount.")
    earliest = max(CLOCK.now(), _parse_time(self._get_param("StartDateRange")) or 0.0)
    start = earliest + (_BLOCK_BOUNDARY_SECONDS - earliest) % _DAY_SECONDS
    latest = _parse_time(self._get_param("EndDateRange"))
    stored_offerings: dict[str, dict[str, Any]] = vars(backend).setdefault("_capacity_block_offers", {})
    offerings = []
    for zone in _offering_zones(backend.region_name, instance_type):
        if latest is not None and start + hours * _HOUR_SECONDS > latest:
            continue
        offering = {
            "CapacityBlockOfferingId": random_id("cbo", 17),
            "InstanceType": instance_type,
            "AvailabilityZone": zone,
            "InstanceCount": count,
            "StartDate": datetime.fromtimestamp(start, UTC).replace(tzinfo=None),
            "EndDate": datetime.fromtimestamp(start + hours * _HOUR_SECONDS, UTC).replace(tzinfo=None),
            "CapacityBlockDurationHours": hours,
            "Tenancy": "default",
        }
        end = start + hours * _HOUR_SECONDS
        stored_offerings[str(offering["CapacityBlockOfferingId"])] = {**offering, "start": start, "end": end}
        offerings.append(offering)
    return ActionResult({"CapacityBlockOfferings": offerings})


def purchase_capacity_block(self: Any) -> ActionResult:
    """Purchase an offering: its Capacity Block becomes a reservation."""
    backend, name = self.ec2_backend, self._get_param("CapacityBlockOfferingId")
    offering = vars(backend).get("_capacity_block_offers", {}).pop(name, None)
    if offering is None:
        raise ec2_error("InvalidCapacityBlockOfferingId.NotFound", f"The Capacity Block offering {name} does not exist")
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
    reservations(backend)[reservation.id] = reservation
    return ActionResult({"CapacityReservation": reservation, "CapacityReservations": [reservation]})


def _offering_zones(region: str, instance_type: str) -> list[str]:
    offerings = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return sorted(offering["Location"] for offering in offerings if offering["InstanceType"] == instance_type)


def _parse_time(value: Any) -> float | None:
    if not value:
        return None
    when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _end_date_type(end: float | None) -> str:
    return "unlimited" if end is None else "limited"


def install() -> None:
    """Add the actions to moto."""
    extend(
        EC2Response,
        create_capacity_reservation,
        describe_capacity_reservations,
        cancel_capacity_reservation,
        describe_capacity_block_offerings,
        purchase_capacity_block,
    )
