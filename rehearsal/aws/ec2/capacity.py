"""Which capacity a launch takes: that of a reservation, Spot, or On-Demand; and what EC2 refuses of what it asks.

Sources: API reference, RunInstances (CapacityReservationSpecification, InstanceMarketOptions) and error codes; EC2 user
guide, "Launch instances using Capacity Blocks". A placement group beside a Capacity Block is not refused there: "there
is no need to use a cluster placement group with a Capacity Block".
"""

from typing import Any

from rehearsal.aws.ec2 import spot
from rehearsal.aws.ec2.quotas import check_on_demand, check_spot
from rehearsal.aws.ec2.reservation_actions import find
from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.extension import refuse
from rehearsal.aws.injection import INJECTED, InsufficientCapacity

Asked = dict[str, Any]
_MARKETS = (None, "spot", "capacity-block")
_PREFERENCES = (None, "open", "none", "capacity-reservations-only")
_KNOWN = {"CapacityReservationPreference", "CapacityReservationTarget"}


def market_of(asked: Asked) -> str | None:
    found: str | None = (asked.get("InstanceMarketOptions") or {}).get("MarketType")
    return found


def check_capacity(asked: Asked) -> None:
    """Refuse combinations that no account could launch."""
    market, options = market_of(asked), asked.get("InstanceMarketOptions") or {}
    if market not in _MARKETS:
        raise refuse("InvalidParameterValue", f"Invalid value '{market}' for MarketType.")
    specification = asked.get("CapacityReservationSpecification") or {}
    preference, target = specification.get("CapacityReservationPreference"), _target(specification)
    if unknown := specification.keys() - _KNOWN:
        raise NotImplementedError(f"a launch with a reservation's {', '.join(sorted(unknown))}")
    if preference not in _PREFERENCES:
        raise refuse("InvalidParameterValue", f"Invalid value '{preference}' for CapacityReservationPreference.")
    if target and preference in ("open", "none"):
        raise _combination("Specify either a CapacityReservationPreference or a CapacityReservationTarget.")
    if options.get("SpotOptions") and market != "spot":
        raise _combination("SpotOptions are for the MarketType spot.")
    if market == "spot":
        if target:
            raise _combination("A Spot Instance can't run in a Capacity Reservation.")
        spot.check_options(options.get("SpotOptions") or {})
    if market == "capacity-block" and not target:
        raise _combination("The MarketType capacity-block needs a CapacityReservationTarget: the Capacity Block's ID.")


def _target(specification: Asked) -> str | None:
    target = specification.get("CapacityReservationTarget") or {}
    if target.get("CapacityReservationResourceGroupArn"):
        raise NotImplementedError("a launch that targets a group of reservations")
    found: str | None = target.get("CapacityReservationId")
    return found


def allot(backend: Any, asked: Asked, zone: str, count: int, at_least: int) -> list[str | None]:
    """For each instance that can be launched, the reservation that it takes its capacity of, or none.

    Raises EC2ClientError with AWS's code when it would be fewer than `at_least`.
    """
    kind, market = asked["InstanceType"], market_of(asked)
    specification = asked.get("CapacityReservationSpecification") or {}
    if target := _target(specification):
        held = find(backend, target)
        if held.is_block != (market == "capacity-block"):
            raise _combination(
                f"{target} is {'a' if held.is_block else 'no'} Capacity Block: the MarketType capacity-block is for "
                "Capacity Blocks, and they need it."
            )
        return _of_reservations([held] if held.open_for_launches and held.fits(kind, zone) else [], count, at_least)
    if market == "spot":
        spot.check_price(kind, asked["InstanceMarketOptions"].get("SpotOptions") or {})
        check_spot(backend, kind, count)
        return _unreserved([], kind, zone, count, at_least)
    preference = specification.get("CapacityReservationPreference")
    matching = [
        held
        for held in reservations(backend).values()
        if held.instance_match_criteria == "open" and held.open_for_launches and held.fits(kind, zone)
    ]
    if preference == "capacity-reservations-only":
        return _of_reservations(matching, count, at_least)
    taken = [] if preference == "none" else _of_reservations(matching, count, 0)
    if len(taken) < count:
        check_on_demand(backend, kind, count - len(taken))
    return _unreserved(taken, kind, zone, count, at_least)


def _of_reservations(held: list[CapacityReservation], count: int, at_least: int) -> list[str | None]:
    free: list[str | None] = [one.id for one in held for _ in range(one.available_instance_count)]
    if len(free) < at_least:
        raise refuse(
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity for this request.",
        )
    return free[:count]


def _unreserved(taken: list[str | None], kind: str, zone: str, count: int, at_least: int) -> list[str | None]:
    found = taken + [None] * INJECTED.room(kind, count - len(taken))
    if len(found) < at_least:
        raise InsufficientCapacity(zone, kind)
    return found


def _combination(message: str) -> Exception:
    return refuse("InvalidParameterCombination", message)
