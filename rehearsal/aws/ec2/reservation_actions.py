"""API actions on capacity reservations: create, describe, modify, cancel.

Sources: API reference of these actions; EC2 user guide, "Create a Capacity Reservation" ("the request fails" as a whole
without capacity or quota for all its instances) and "Use Capacity Reservations with cluster placement groups".
"""

from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.ec2.utils import generic_filter, random_id

from rehearsal.aws.active_faults import ACTIVE_FAULTS, ApiError, InsufficientCapacityError
from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.assessment import start_assessment
from rehearsal.aws.ec2.capacity_requests import record_request
from rehearsal.aws.ec2.idempotency import once_per_token
from rehearsal.aws.ec2.placement import placement_groups, validate_placement
from rehearsal.aws.ec2.quotas import check_on_demand
from rehearsal.aws.ec2.reservations import CapacityReservation, find_reservation, reservations
from rehearsal.aws.ec2.zone_capacity import free_capacity
from rehearsal.aws.moto_extension import ec2_error, extend
from rehearsal.aws.timing import timing

_MINIMUM_COMMITMENT_SECONDS = 14 * 86400  # API reference, CreateCapacityReservation, CommitmentDuration
_SUPPORTED_KEYS = frozenset(
    [
        "AvailabilityZone",
        "ClientToken",
        "CommitmentDuration",
        "EbsOptimized",
        "EndDate",
        "EndDateType",
        "InstanceCount",
        "InstanceMatchCriteria",
        "InstancePlatform",
        "InstanceType",
        "PlacementGroupArn",
        "StartDate",
        "TagSpecifications",
        "Tenancy",
    ]
)


def create_capacity_reservation(self: Any) -> ActionResult:
    """Create an On-Demand Capacity Reservation, for all its instances or not at all, once per client token."""
    backend, parameters = self.ec2_backend, dict(self._get_params())
    _require_supported(parameters)
    self.error_on_dryrun()

    def create() -> CapacityReservation:
        tags = self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {})
        count, zone = int(parameters["InstanceCount"]), parameters["AvailabilityZone"]
        with record_request(backend, "reservation", parameters["InstanceType"], zone, count, tags) as grant:
            reservation = _create_reservation(backend, parameters)
            grant.instances = count
        reservation.add_tags(tags)
        reservations(backend)[reservation.id] = reservation
        start_assessment(reservation)
        reservation.fails = ACTIVE_FAULTS.reservations_fail(zone)
        reservation.pending_until = reservation.created + timing().reservation_pending_seconds
        return reservation

    reservation = once_per_token(backend, "CreateCapacityReservation", parameters, create)
    return ActionResult({"CapacityReservation": reservation})


def _require_supported(parameters: dict[str, Any]) -> None:
    unsupported = (
        {key for key, value in parameters.items() if value not in (None, "", [])} - _SUPPORTED_KEYS - {"DryRun"}
    )
    if unsupported or parameters.get("Tenancy", "default") != "default":
        raise NotImplementedError(
            f"a capacity reservation with {', '.join(sorted(unsupported)) or 'a dedicated tenancy'}"
        )
    for key in ("InstanceType", "InstancePlatform", "InstanceCount", "AvailabilityZone"):
        if not parameters.get(key):
            raise ec2_error("MissingParameter", f"The request must contain the parameter {key}")


def _create_reservation(backend: Any, parameters: dict[str, Any]) -> CapacityReservation:
    """Return a new reservation. Raises EC2's error for invalid parameters, without quota and without capacity."""
    instance_type, zone = parameters["InstanceType"], parameters["AvailabilityZone"]
    count = int(parameters["InstanceCount"])
    if instance_type not in INSTANCE_TYPES:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    if count < 1:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{count}' for InstanceCount.")
    criteria = parameters.get("InstanceMatchCriteria") or "open"
    if criteria not in {"open", "targeted"}:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{criteria}' for InstanceMatchCriteria.")
    if zone not in offering_zones(backend.region_name, instance_type):
        raise ec2_error(
            "Unsupported", f"The instance type {instance_type} is not supported in the Availability Zone {zone}."
        )
    start, end, group = _start(parameters), _end(parameters), _placement_group(backend, parameters)
    check_on_demand(backend, instance_type, count, "InstanceLimitExceeded")
    if start is None and free_capacity(backend, instance_type, zone, count, group or "") < count:
        raise ApiError(*_insufficient_capacity(instance_type, zone))
    return CapacityReservation(
        backend,
        random_id("cr", 17),
        instance_type=instance_type,
        zone=zone,
        count=count,
        criteria=criteria,
        start=start,
        end=end,
        platform=parameters["InstancePlatform"],
        ebs_optimized=str(parameters.get("EbsOptimized")).lower() == "true",
        placement_group=group,
    )


def _insufficient_capacity(instance_type: str, zone: str) -> tuple[str, str, str]:
    """Return HTTP status, code and message of EC2's error."""
    error = InsufficientCapacityError(zone, instance_type)
    return "500 Internal Server Error", error.code, error.message


def _start(parameters: dict[str, Any]) -> float | None:
    """Return the Unix time at which a future-dated reservation starts; None for an immediate one.

    API reference, CreateCapacityReservation. Not emulated: a start 5 to 120 days ahead, 32 vCPUs or more, and instance
    families C, G, I, M, R and T only.
    """
    start = parse_time(parameters.get("StartDate"))
    if start is None:
        return None
    if parameters.get("PlacementGroupArn"):  # "Not supported for future-dated Capacity Reservations"; code: assumption
        raise ec2_error(
            "InvalidParameterCombination", "A future-dated reservation can't be created in a placement group."
        )
    if parameters.get("InstanceMatchCriteria") != "targeted":  # "you must specify targeted"; code: an assumption
        raise ec2_error("InvalidParameterCombination", "A future-dated reservation must be targeted.")
    if int(parameters.get("CommitmentDuration") or 0) < _MINIMUM_COMMITMENT_SECONDS:
        raise ec2_error(
            "InvalidParameterValue", "A future-dated reservation has a CommitmentDuration of 14 days or more."
        )
    if start <= CLOCK.now():
        raise ec2_error("InvalidParameterValue", "The StartDate must be in the future.")
    return start


def _end(parameters: dict[str, Any]) -> float | None:
    """Return the Unix time of the EndDate; None for an unlimited reservation."""
    end = parse_time(parameters.get("EndDate"))
    if (parameters.get("EndDateType") or ("unlimited" if end is None else "limited")) != _end_date_type(end):
        raise ec2_error("InvalidParameterCombination", "An EndDate and the EndDateType limited require each other.")
    if end is not None and end <= CLOCK.now():
        raise ec2_error("InvalidParameterValue", "The EndDate must be in the future.")
    return end


def _placement_group(backend: Any, parameters: dict[str, Any]) -> str | None:
    """Return the name of the cluster placement group of PlacementGroupArn; None without one."""
    arn = str(parameters.get("PlacementGroupArn") or "")
    if not arn:
        return None
    group = next((group for group in placement_groups(backend).values() if group.group_arn == arn), None)
    if group is None:
        raise ec2_error("InvalidPlacementGroup.Unknown", f"The Placement Group '{arn}' is unknown.")
    if group.strategy != "cluster":
        raise ec2_error("InvalidParameterValue", "Capacity Reservations support cluster placement groups only.")
    validate_placement(backend, group.group_name, parameters["InstanceType"])
    return group.group_name


def modify_capacity_reservation(self: Any) -> ActionResult:
    """Change the number of instances, all or none, or the end of an active reservation.

    API reference: "You can't modify the Capacity Reservation in any way" while it is pending. Code: an assumption.
    """
    backend, parameters = self.ec2_backend, dict(self._get_params())
    reservation = find_reservation(backend, self._get_param("CapacityReservationId"))
    self.error_on_dryrun()
    _require_changeable(reservation, "modified")
    _require_state(reservation, ("active",), "modified")
    if parameters.get("InstanceCount"):
        _resize(reservation, int(parameters["InstanceCount"]))
    if parameters.get("EndDate") or parameters.get("EndDateType"):
        reservation.end = _end(parameters)
    return ActionResult({"Return": True})


def _resize(reservation: CapacityReservation, count: int) -> None:
    """Set the number of instances. Raises EC2's error without quota or capacity for the additional ones."""
    additional, instance_type = count - reservation.total_instance_count, reservation.instance_type
    backend, zone = reservation.ec2_backend, reservation.availability_zone
    if additional > 0:
        check_on_demand(backend, instance_type, additional, "InstanceLimitExceeded")
        if free_capacity(backend, instance_type, zone, additional, reservation.placement_group or "") < additional:
            raise ApiError(*_insufficient_capacity(instance_type, zone))
    reservation.resize(count)


def describe_capacity_reservations(self: Any) -> ActionResult:
    """Return reservations by id and filter."""
    names = self._get_param("CapacityReservationIds", [])
    backend = self.ec2_backend
    selected = [find_reservation(backend, name) for name in names] or list(reservations(backend).values())
    return ActionResult({"CapacityReservations": generic_filter(self._filters_from_querystring(), selected)})


def cancel_capacity_reservation(self: Any) -> ActionResult:
    """Cancel a reservation that is active or assessed. Its instances continue as On-Demand Instances.

    A scheduled one requires a cancellation quote (API reference), which is not emulated. `pending` is not among the
    states that the API reference lists; the code of the error is an assumption.
    """
    reservation = find_reservation(self.ec2_backend, self._get_param("CapacityReservationId"))
    _require_changeable(reservation, "cancelled")
    _require_state(reservation, ("active", "assessing"), "cancelled")
    reservation.cancelled_at = CLOCK.now()
    for instance in self.ec2_backend.all_instances():
        if instance.capacity_reservation_id == reservation.id:
            instance.capacity_reservation_id = None
    return ActionResult({"Return": True})


def _require_changeable(reservation: CapacityReservation, action: str) -> None:
    """Refuse changes of Capacity Blocks (API reference) and of interruptible reservations (EC2 user guide).

    "Error codes for the Amazon EC2 API" names none for it: OperationNotPermitted is an assumption.
    """
    if reservation.market_type is not None:
        raise ec2_error("OperationNotPermitted", f"The {reservation.market_type} {reservation.id} can't be {action}.")


def _require_state(reservation: CapacityReservation, states: tuple[str, ...], action: str) -> None:
    if reservation.state not in states:
        raise ec2_error(
            "InvalidCapacityReservationState",
            f"The capacity reservation {reservation.id} is {reservation.state} and can't be {action}.",
        )


def offering_zones(region: str, instance_type: str) -> list[str]:
    """Return the Availability Zones that offer the instance type."""
    offerings = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return sorted(offering["Location"] for offering in offerings if offering["InstanceType"] == instance_type)


def parse_time(value: Any) -> float | None:
    """Return the Unix time of a time parameter; None without one."""
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
        modify_capacity_reservation,
    )
