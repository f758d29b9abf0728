"""Validators of settings that would have no effect on the stack."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem


def capacity_search_used(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`capacity.reserve` and `capacity.wait_minutes` are set where the launch may reserve capacity."""
    capacity, can_reserve = settings.capacity, any(map(settings.can_reserve, settings.groups))
    unused = {"reserve": not can_reserve, "wait_minutes": not settings.reserves_any_capacity}
    for key, is_unused in unused.items():
        if is_unused and key in capacity.model_fields_set:
            reason = (
                "has no effect: the launch reserves the capacity of on-demand GPU nodes, and "
                f"{no_reservation_reason(settings)}"
            )
            yield invalid_setting(f"capacity.{key}", getattr(capacity, key), reason, "Remove it")


def no_reservation_reason(settings: StackSettings) -> str:
    """Return why the launch reserves no capacity."""
    if settings.worker_type.gpu is None:
        return f"{settings.instance_type} has no GPU"
    if settings.capacity.spot:
        return "the nodes are Spot Instances"
    if not any(map(settings.can_reserve, settings.groups)):
        named = settings.capacity.reservation_id
        return f"the nodes use capacity.{named[0] if named else settings.capacity.sources[0]}"
    return "capacity.reserve is false"


def expiry_of_named_reservation(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`capacity.reservation.on_expiry` is set for a reservation with an id, whose end is known."""
    reservation = settings.capacity.reservation
    if reservation and reservation.id is None and "on_expiry" in reservation.model_fields_set:
        reason = "has no effect without capacity.reservation.id: the end of open reservations is not known"
        yield invalid_setting(
            "capacity.reservation.on_expiry", reservation.on_expiry, reason, "Remove it, or set the id"
        )


def placement_group_not_of_reservation(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The stack requires no placement group where it names a reservation, which has its own group or none."""
    reservation = settings.capacity.reservation
    if reservation and reservation.id and settings.network.placement_group:
        reason = f"has no effect: nodes are in the placement group of {reservation.id}, or in none if it has none"
        yield invalid_setting("network.placement_group", True, reason, "Remove it, or use another reservation")


VALIDATORS = (capacity_search_used, expiry_of_named_reservation, placement_group_not_of_reservation)
