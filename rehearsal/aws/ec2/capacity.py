"""Allocation of capacity to a launch: from a reservation, Spot or On-Demand, and validation of those parameters.

Sources: API reference, RunInstances (CapacityReservationSpecification, InstanceMarketOptions) and error codes; EC2 user
guide, "Launch instances using Capacity Blocks". A placement group together with a Capacity Block is not an error there:
"there is no need to use a cluster placement group with a Capacity Block". Launches into an On-Demand reservation match
its placement group too (EC2 user guide, "Use Capacity Reservations with cluster placement groups").
"""

from typing import Any

from rehearsal.aws.active_faults import InsufficientCapacityError
from rehearsal.aws.ec2 import spot
from rehearsal.aws.ec2.quotas import check_on_demand, check_spot
from rehearsal.aws.ec2.reservations import INTERRUPTIBLE_MARKET, CapacityReservation, find_reservation, reservations
from rehearsal.aws.ec2.zone_capacity import free_capacity
from rehearsal.aws.moto_extension import ec2_error

LaunchParameters = dict[str, Any]
_MARKETS = (None, "spot", "capacity-block", INTERRUPTIBLE_MARKET)
_PREFERENCES = (None, "open", "none", "capacity-reservations-only")
_SUPPORTED = {"CapacityReservationPreference", "CapacityReservationTarget"}


def market_type(parameters: LaunchParameters) -> str | None:
    """Return the MarketType of launch parameters, None for On-Demand."""
    value: str | None = (parameters.get("InstanceMarketOptions") or {}).get("MarketType")
    return value


def validate_capacity_options(parameters: LaunchParameters) -> None:
    """Raise EC2's error for invalid market and reservation parameters."""
    market, options = market_type(parameters), parameters.get("InstanceMarketOptions") or {}
    if market not in _MARKETS:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{market}' for MarketType.")
    specification = parameters.get("CapacityReservationSpecification") or {}
    preference, target = specification.get("CapacityReservationPreference"), _target_reservation(specification)
    if unknown := specification.keys() - _SUPPORTED:
        raise NotImplementedError(f"a launch with CapacityReservationSpecification {', '.join(sorted(unknown))}")
    if preference not in _PREFERENCES:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{preference}' for CapacityReservationPreference.")
    if target and preference in ("open", "none"):
        raise _invalid_combination("Specify either a CapacityReservationPreference or a CapacityReservationTarget.")
    if options.get("SpotOptions") and market != "spot":
        raise _invalid_combination("SpotOptions require the MarketType spot.")
    if market == "spot":
        if target:
            raise _invalid_combination("A Spot Instance can't run in a Capacity Reservation.")
        spot.validate_spot_options(options.get("SpotOptions") or {})
    if market in ("capacity-block", INTERRUPTIBLE_MARKET) and not target:
        raise _invalid_combination(f"The MarketType {market} requires a CapacityReservationTarget with an ID.")


def _target_reservation(specification: LaunchParameters) -> str | None:
    target = specification.get("CapacityReservationTarget") or {}
    if target.get("CapacityReservationResourceGroupArn"):
        raise NotImplementedError("a launch that targets a group of reservations")
    reservation_id: str | None = target.get("CapacityReservationId")
    return reservation_id


def allocate_capacity(
    backend: Any, parameters: LaunchParameters, zone: str, count: int, minimum_count: int
) -> list[str | None]:
    """Return, for each instance that can be launched, the id of its capacity reservation, or None.

    Raises EC2ClientError with AWS's code if fewer than `minimum_count` instances can be launched.
    """
    instance_type, market = parameters["InstanceType"], market_type(parameters)
    group = (parameters.get("Placement") or {}).get("GroupName") or ""
    specification = parameters.get("CapacityReservationSpecification") or {}
    if target := _target_reservation(specification):
        reservation = find_reservation(backend, target)
        if reservation.market_type != market:
            required = reservation.market_type or "of On-Demand Instances"
            raise _invalid_combination(f"{target} requires the MarketType {required}, not {market}.")
        if reservation.state in ("scheduled", "payment-pending") and reservation.is_block:
            # API reference, "Error codes for the Amazon EC2 API"
            raise ec2_error(
                "InvalidCapacityReservationState.PendingActivation", f"Your Capacity Block {target} is not active yet."
            )
        usable = reservation.accepts_launches and reservation.matches(instance_type, zone)
        return _from_reservations([reservation] if usable else [], group, count, minimum_count)
    if market == "spot":
        spot.check_maximum_price(instance_type, parameters["InstanceMarketOptions"].get("SpotOptions") or {})
        check_spot(backend, instance_type, count)
        free = free_capacity(backend, instance_type, zone, count, group)
        return _add_unreserved([], free, instance_type, zone, minimum_count)
    preference = specification.get("CapacityReservationPreference")
    matching = [
        reservation
        for reservation in reservations(backend).values()
        if reservation.instance_match_criteria == "open"
        and reservation.accepts_launches
        and reservation.matches(instance_type, zone)
    ]
    if preference == "capacity-reservations-only":
        return _from_reservations(matching, group, count, minimum_count)
    reserved = [] if preference == "none" else _from_reservations(matching, group, count, 0)
    if len(reserved) < count:
        check_on_demand(backend, instance_type, count - len(reserved))
    free = free_capacity(backend, instance_type, zone, count - len(reserved), group)
    return _add_unreserved(reserved, free, instance_type, zone, minimum_count)


def _from_reservations(
    candidates: list[CapacityReservation], group: str, count: int, minimum_count: int
) -> list[str | None]:
    available: list[str | None] = [
        reservation.id for reservation in candidates for _ in range(reservation.available_in_group(group))
    ]
    if len(available) < minimum_count:
        raise ec2_error(
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity for this request.",
        )
    return available[:count]


def _add_unreserved(
    reserved: list[str | None], unreserved_count: int, instance_type: str, zone: str, minimum_count: int
) -> list[str | None]:
    allocated = reserved + [None] * unreserved_count
    if len(allocated) < minimum_count:
        raise InsufficientCapacityError(zone, instance_type)
    return allocated


def _invalid_combination(message: str) -> Exception:
    return ec2_error("InvalidParameterCombination", message)
