"""Create, extend and cancel a Capacity Reservation before `pulumi up` (`trainyard reserve`).

Head and file system are in one Availability Zone, so the zone with capacity must be known before `pulumi up`. The
preview uses the zone and the placement group of the reservation, and the launch its capacity. Identifiers
call this reservation held capacity.
"""

import secrets
import time
from collections.abc import Callable

from pydantic import Field

from trainyard.aws import placement, tags
from trainyard.aws.ec2 import offering_zones, subnet_zone
from trainyard.aws.reservations import CapacityReservation, find_reservations
from trainyard.base import StrictModel
from trainyard.config.cost import node_usd_per_hour
from trainyard.config.settings import StackSettings
from trainyard.config.settings.capacity import GroupPlan
from trainyard.config.validation_errors import invalid_setting
from trainyard.config.validators.unused import no_reservation_reason
from trainyard.errors import InputError, Problem
from trainyard.models.run import RunRecord
from trainyard.operations.capacity_search import CapacityRequest, reserve_capacity
from trainyard.operations.cluster import Cluster
from trainyard.operations.pending_reservations import cancel_reservations, extend_reservation, wait_until_active
from trainyard.operations.progress import Display
from trainyard.operations.signals import ignore_signals, sigterm_as_interrupt
from trainyard.operations.stack_reservations import delete_held_placement_groups
from trainyard.quantity import quantity
from trainyard.times import format_time

DEFAULT_HOURS = 2.0


class HeldCapacity(StrictModel):
    """`trainyard reserve --json`."""

    reservation: str = Field(description="Id of the capacity reservation.")
    instance_type: str = Field(description="EC2 instance type.")
    instances: int = Field(gt=0, description="Reserved instances.")
    zone: str = Field(description="Availability Zone.")
    placement_group: str | None = Field(description="ARN of the cluster placement group; null without one.")
    end: float | None = Field(description="Unix time at which AWS ends the reservation, seconds; null without an end.")
    usd_per_hour: float = Field(ge=0, description="Price of the reservation, used or not, USD an hour.")


def hold_capacity(
    cluster: Cluster, settings: StackSettings, hours: float | None, display: Display, confirm: Callable[[str], None]
) -> HeldCapacity:
    """Reserve the capacity of the stack's on-demand GPU nodes for `hours`, in the first zone that has all of it.

    Returns the existing reservation if the stack has one, extended if `hours` from now are later than its end. None:
    DEFAULT_HOURS for a new reservation, and no extension. `confirm` receives the price and raises to refuse it. Raises
    InputError for a stack whose launch reserves nothing, or whose file differs from the existing reservation, and
    CapacityError.
    """
    group = _reserved_group(cluster.stack, settings)
    node_price = node_usd_per_hour(settings, group)
    held = _find_active(cluster, group.nodes, settings.instance_type, display)
    if held is None:
        held = _reserve(cluster, settings, group, hours or DEFAULT_HOURS, display, confirm)
    elif hours is not None:
        held = _extend(cluster, held, int(time.time() + hours * 3600), node_price, display, confirm)
    return _result(held, node_price)


def _reserved_group(stack: str, settings: StackSettings) -> GroupPlan:
    """Return the group whose capacity the launch reserves. Raises InputError without one."""
    groups = [group for group in settings.groups if settings.reserves_capacity(group)]
    if not groups:
        reason = f"its launch reserves no capacity: {no_reservation_reason(settings)}"
        fix = (
            "Use this command for on-demand GPU nodes with capacity.reserve: true, trainyard blocks for Capacity Blocks"
        )
        raise InputError([Problem("--stack", stack, reason, fix, "nothing_to_reserve")])
    (group,) = groups
    return group


def _find_active(cluster: Cluster, instances: int, instance_type: str, display: Display) -> CapacityReservation | None:
    """Return the existing reservation when it is active; None without one, and if EC2 does not activate it.

    Raises InputError if it is not what the file of the stack requires.
    """
    existing = find_reservations(cluster.region, tags.held_capacity_tags(cluster.stack_tag))
    if not existing:
        return None
    _require_same(cluster.stack, existing[0], instances, instance_type)
    held = wait_until_active(cluster.region, existing[0], display)
    if held.state != "active":
        return None
    end = f" until {format_time(held.end)}" if held.end else ""
    display.line("capacity", f"{held.id} exists in {held.zone}{end}")
    return held


def _reserve(
    cluster: Cluster,
    settings: StackSettings,
    group: GroupPlan,
    hours: float,
    display: Display,
    confirm: Callable[[str], None],
) -> CapacityReservation:
    """Return a new reservation, in a new placement group if the nodes are in one."""
    zones, node_price = _zones(cluster, settings), node_usd_per_hour(settings, group)
    where = f"{group.nodes} x {settings.instance_type} in {cluster.region}"
    confirm(
        "The reservation is billed like running instances until the nodes of the run are terminated or the reservation "
        f"is cancelled. Otherwise AWS ends it within an hour after {quantity(hours, 'hour')}. Reserve {where} for "
        f"{group.nodes * node_price:,.2f} USD per hour?"
    )
    request = CapacityRequest(
        stack=cluster.stack,
        region=cluster.region,
        instance_type=settings.instance_type,
        instances=group.nodes,
        zones=zones,
        placement_group_arn=_create_placement_group(cluster, settings),
        tags={**tags.held_capacity_tags(cluster.stack_tag), "Name": f"trainyard-{cluster.stack}-held-capacity"},
        launch_id=secrets.token_hex(8),  # until a launch uses it
        hold_seconds=hours * 3600,
        usd_per_hour=node_price,
        wait_minutes=settings.capacity.wait_minutes,
    )
    with sigterm_as_interrupt():
        try:
            held = reserve_capacity(request, display)
        except BaseException:
            with ignore_signals():
                delete_held_placement_groups(cluster, display)
            raise
    _report_other_zone(cluster, held.zone, display)
    return held


def _create_placement_group(cluster: Cluster, settings: StackSettings) -> str | None:
    """Return the ARN of a new cluster placement group; None if the nodes are in none."""
    if not any(map(settings.in_placement_group, settings.groups)):
        return None
    name = f"trainyard-{cluster.stack}-{secrets.token_hex(4)}"
    return placement.create_cluster_group(cluster.region, name, tags.held_capacity_tags(cluster.stack_tag)).arn


def _require_same(stack: str, held: CapacityReservation, instances: int, instance_type: str) -> None:
    """Raise InputError unless the existing reservation is what the file of the stack requires."""
    if (held.instances, held.instance_type) == (instances, instance_type):
        return
    reason = f"{held.id} holds {held.instances} x {held.instance_type}, the file has {instances} x {instance_type}"
    fix = f"Cancel it first: trainyard reserve -s {stack} --cancel"
    raise InputError([Problem("--stack", stack, reason, fix, "other_capacity_held")])


def _extend(
    cluster: Cluster,
    held: CapacityReservation,
    end: float,
    node_price: float,
    display: Display,
    confirm: Callable[[str], None],
) -> CapacityReservation:
    """Return the reservation, extended to `end` (Unix time, seconds) after the confirmation if its end is earlier."""
    if held.end is None or end <= held.end:
        reason = f"{format_time(end)} is before its end" if held.end else "it has no end"
        display.line("capacity", f"{held.id} is not extended: {reason}")
        return held
    described = f"{held.id} ({held.instances} x {held.instance_type}, {held.instances * node_price:,.2f} USD per hour)"
    confirm(f"Extend {described} from {format_time(held.end)} to {format_time(end)}?")
    action = f"Repeat the command, or cancel the reservation: trainyard reserve -s {cluster.stack} --cancel"
    return extend_reservation(cluster.region, held, end, action)


def cancel_held_capacity(cluster: Cluster, display: Display) -> list[str]:
    """Cancel the reservation of `trainyard reserve` and delete its placement group; return its id in a list.

    Raises InputError when the active run uses it.
    """
    held = find_reservations(cluster.region, tags.held_capacity_tags(cluster.stack_tag))
    reservation_ids = [each.id for each in held]
    run = _active_run(cluster)
    if run is not None and (used := set(reservation_ids) & set(run.reservations)):
        reason, fix = f"run {run.run} is active and uses it", f"End the run: trainyard stop -s {cluster.stack}"
        raise InputError([Problem("--cancel", ", ".join(sorted(used)), reason, fix, "reservation_in_use")])
    cancel_reservations(cluster.region, reservation_ids, display)
    delete_held_placement_groups(cluster, display)
    return reservation_ids


def _zones(cluster: Cluster, settings: StackSettings) -> list[str]:
    """Return the zones to search, those of the deployed stack first.

    They are the zones of its subnets if it has no file system or an active run, the zone of the existing subnet in the
    settings, the zones of capacity.zones, or all that offer the instance types.
    """
    deployed = _deployed_zones(cluster)
    if deployed and (settings.fsx is None or _active_run(cluster)):
        return deployed
    if settings.network.existing:
        return [subnet_zone(cluster.region, settings.network.existing.subnet_id)]
    offering = offering_zones(cluster.region, settings.required_types)
    zones = settings.capacity.zones or offering
    if unusable := [zone for zone in zones if zone not in offering]:
        names = " and ".join(settings.required_types)
        reason = f"{', '.join(unusable)} does not offer {names}, or is no usable zone of {cluster.region}"
        fix = f"Use {', '.join(offering)}" if offering else "Choose other types, or another region"
        raise InputError([invalid_setting("capacity.zones", list(zones), reason, fix, "zone_without_types")])
    return sorted(zones, key=lambda zone: zone not in deployed)


def _deployed_zones(cluster: Cluster) -> list[str]:
    """Return the zones of the deployed stack's subnets; none if it is not deployed. With a file system it is one."""
    if not cluster.is_deployed:
        return []
    return list(dict.fromkeys(subnet.zone for group in cluster.manifest.groups for subnet in group.subnets))


def _active_run(cluster: Cluster) -> RunRecord | None:
    run = cluster.current_run()
    return run if run is not None and cluster.outcome(run.run) is None else None


def _report_other_zone(cluster: Cluster, zone: str, display: Display) -> None:
    """Display how to move the deployed stack to the zone of the reservation, if it is in another."""
    if (deployed := _deployed_zones(cluster)) and zone not in deployed:
        display.line(
            "capacity",
            f"the stack is in {', '.join(deployed)}. Set capacity.zones: [{zone}] and run trainyard up -s "
            f"{cluster.stack}. This replaces head and file system: export the data of the file system first",
        )


def _result(reservation: CapacityReservation, node_price: float) -> HeldCapacity:
    return HeldCapacity(
        reservation=reservation.id,
        instance_type=reservation.instance_type,
        instances=reservation.instances,
        zone=reservation.zone,
        placement_group=reservation.placement_group_arn,
        end=reservation.end,
        usd_per_hour=round(reservation.instances * node_price, 2),
    )
