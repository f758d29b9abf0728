"""Capacity reservations as API actions: made, told, cancelled; and Capacity Blocks offered and bought."""

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
from rehearsal.aws.extension import extend, refuse

_MALFORMED = re.compile(r"cr-[0-9a-f]{17}")
_DAY, _HOUR = 86400, 3600
_BLOCKS_END = 11.5 * _HOUR  # blocks begin and end at 11:30 UTC
_HOURS = (*range(24, 14 * 24 + 1, 24), *range(21 * 24, 182 * 24 + 1, 7 * 24))
_MOST_INSTANCES = 64
_KNOWN = frozenset(
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


def find(backend: Any, name: str) -> CapacityReservation:
    """The reservation of this id. Raises EC2's refusal where there is none."""
    if not _MALFORMED.fullmatch(name):
        raise refuse("InvalidCapacityReservationId.Malformed", f'Invalid id: "{name}"')
    held = reservations(backend).get(name)
    if held is None:
        raise refuse("InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' does not exist")
    return held


def create_capacity_reservation(self: Any) -> ActionResult:
    backend, asked = self.ec2_backend, dict(self._get_params())
    unknown = {key for key, value in asked.items() if value not in (None, "", [])} - _KNOWN - {"DryRun"}
    if unknown or asked.get("Tenancy", "default") != "default":
        raise NotImplementedError(f"a capacity reservation with {', '.join(sorted(unknown)) or 'a dedicated tenancy'}")
    self.error_on_dryrun()
    for key in ("InstanceType", "InstancePlatform", "InstanceCount", "AvailabilityZone"):
        if not asked.get(key):
            raise refuse("MissingParameter", f"The request must contain the parameter {key}")
    kind, zone, count = asked["InstanceType"], asked["AvailabilityZone"], int(asked["InstanceCount"])
    if kind not in INSTANCE_TYPES:
        raise refuse("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    if count < 1:
        raise refuse("InvalidParameterValue", f"Invalid value '{count}' for InstanceCount.")
    criteria = asked.get("InstanceMatchCriteria") or "open"
    if criteria not in {"open", "targeted"}:
        raise refuse("InvalidParameterValue", f"Invalid value '{criteria}' for InstanceMatchCriteria.")
    end = _time(asked.get("EndDate"))
    if (asked.get("EndDateType") or ("unlimited" if end is None else "limited")) != _end_type(end):
        raise refuse("InvalidParameterCombination", "An EndDate is for the EndDateType limited, and it needs one.")
    if end is not None and end <= CLOCK.now():
        raise refuse("InvalidParameterValue", "The EndDate must be in the future.")
    if zone not in _zones(backend.region_name, kind):
        raise refuse("Unsupported", f"The instance type {kind} is not supported in the Availability Zone {zone}.")
    tokens: dict[str, CapacityReservation] = vars(backend).setdefault("_capacity_reservation_tokens", {})
    token = str(asked.get("ClientToken") or "")
    made = tokens.get(token)
    if made is None:
        check_on_demand(backend, kind, count, "InstanceLimitExceeded")
        made = CapacityReservation(
            backend,
            random_id("cr", 17),
            instance_type=kind,
            zone=zone,
            count=count,
            criteria=criteria,
            end=end,
            platform=asked["InstancePlatform"],
            ebs_optimized=str(asked.get("EbsOptimized")).lower() == "true",
        )
        made.add_tags(self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}))
        reservations(backend)[made.id] = made
        if token:
            tokens[token] = made
    return ActionResult({"CapacityReservation": made})


def describe_capacity_reservations(self: Any) -> ActionResult:
    names = self._get_param("CapacityReservationIds", [])
    found = [find(self.ec2_backend, name) for name in names] or list(reservations(self.ec2_backend).values())
    return ActionResult({"CapacityReservations": generic_filter(self._filters_from_querystring(), found)})


def cancel_capacity_reservation(self: Any) -> ActionResult:
    held = find(self.ec2_backend, self._get_param("CapacityReservationId"))
    if held.is_block:  # "You can't modify or cancel a Capacity Block.": API reference, without the code
        raise refuse("OperationNotPermitted", f"The Capacity Block {held.id} can't be cancelled.")
    if held.state != "active":
        raise refuse(
            "InvalidCapacityReservationState",
            f"The capacity reservation {held.id} is {held.state}: it can't be cancelled.",
        )
    held.cancelled = True
    for instance in self.ec2_backend.all_instances():  # they run on, On-Demand
        if instance.capacity_reservation_id == held.id:
            instance.capacity_reservation_id = None
    return ActionResult({"Return": True})


def describe_capacity_block_offerings(self: Any) -> ActionResult:
    """One offering a zone: from the next 11:30 UTC of what was asked. The account has whatever is asked for."""
    backend, kind = self.ec2_backend, self._get_param("InstanceType")
    count, hours = self._get_int_param("InstanceCount") or 1, self._get_int_param("CapacityDurationHours")
    if kind not in INSTANCE_TYPES or not INSTANCE_TYPES[kind].get("GpuInfo"):
        raise refuse("InvalidParameterValue", f"The instance type {kind} is not available in Capacity Blocks.")
    if hours not in _HOURS:
        raise refuse("InvalidParameterValue", f"Invalid value '{hours}' for CapacityDurationHours.")
    if not 1 <= count <= _MOST_INSTANCES:
        raise refuse("InvalidParameterValue", f"Invalid value '{count}' for InstanceCount.")
    begin = max(CLOCK.now(), _time(self._get_param("StartDateRange")) or 0.0)
    start = begin + (_BLOCKS_END - begin) % _DAY
    latest = _time(self._get_param("EndDateRange"))
    offers: dict[str, dict[str, Any]] = vars(backend).setdefault("_capacity_block_offers", {})
    found = []
    for zone in _zones(backend.region_name, kind):
        if latest is not None and start + hours * _HOUR > latest:
            continue
        offer = {
            "CapacityBlockOfferingId": random_id("cbo", 17),
            "InstanceType": kind,
            "AvailabilityZone": zone,
            "InstanceCount": count,
            "StartDate": datetime.fromtimestamp(start, UTC).replace(tzinfo=None),
            "EndDate": datetime.fromtimestamp(start + hours * _HOUR, UTC).replace(tzinfo=None),
            "CapacityBlockDurationHours": hours,
            "Tenancy": "default",
        }
        offers[str(offer["CapacityBlockOfferingId"])] = {**offer, "start": start, "end": start + hours * _HOUR}
        found.append(offer)
    return ActionResult({"CapacityBlockOfferings": found})


def purchase_capacity_block(self: Any) -> ActionResult:
    backend, name = self.ec2_backend, self._get_param("CapacityBlockOfferingId")
    offer = vars(backend).get("_capacity_block_offers", {}).pop(name, None)
    if offer is None:
        raise refuse("InvalidCapacityBlockOfferingId.NotFound", f"The Capacity Block offering {name} does not exist")
    made = CapacityReservation(
        backend,
        random_id("cr", 17),
        instance_type=offer["InstanceType"],
        zone=offer["AvailabilityZone"],
        count=offer["InstanceCount"],
        block=True,
        start=offer["start"],
        end=offer["end"],
        platform=self._get_param("InstancePlatform") or "Linux/UNIX",
    )
    made.add_tags(self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}))
    reservations(backend)[made.id] = made
    return ActionResult({"CapacityReservation": made, "CapacityReservations": [made]})


def _zones(region: str, instance_type: str) -> list[str]:
    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return sorted(offer["Location"] for offer in offers if offer["InstanceType"] == instance_type)


def _time(given: Any) -> float | None:
    if not given:
        return None
    when = given if isinstance(given, datetime) else datetime.fromisoformat(str(given).replace("Z", "+00:00"))
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _end_type(end: float | None) -> str:
    return "unlimited" if end is None else "limited"


def install() -> None:
    extend(
        EC2Response,
        create_capacity_reservation,
        describe_capacity_reservations,
        cancel_capacity_reservation,
        describe_capacity_block_offerings,
        purchase_capacity_block,
    )
