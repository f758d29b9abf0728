"""Reserve the capacity of a stack before `pulumi up`: `trainyard reserve`. The code calls it held capacity.

Head and file system are in one Availability Zone, so the zone with capacity must be known before `pulumi up`. The
preview uses the zone and the placement group of the reservation, and the launch its capacity.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from trainyard.aws import placement, tags
from trainyard.aws.ec2 import offering_zones, subnet_zone
from trainyard.aws.reservations import CapacityReservation, find_reservations
from trainyard.base import StrictModel
from trainyard.config import CONFIG_KEY
from trainyard.config.cost import node_usd_per_hour
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings
from trainyard.config.stack_config import find_stack_file, read_config
from trainyard.errors import InputError, Problem
from trainyard.operations.capacity_search import CapacityRequest, reserve_capacity
from trainyard.operations.cluster import Cluster
from trainyard.operations.pending_reservations import cancel_reservations, wait_until_active
from trainyard.operations.progress import Display
from trainyard.operations.reservations import delete_held_placement_groups
from trainyard.operations.stack_file import PROJECT_ROOT


class HeldCapacity(StrictModel):
    """`trainyard reserve --json`."""

    reservation: str = Field(description="Id of the capacity reservation.")
    instance_type: str = Field(description="EC2 instance type.")
    instances: int = Field(gt=0, description="Reserved instances.")
    zone: str = Field(description="Availability Zone.")
    placement_group: str | None = Field(description="ARN of the cluster placement group; none without one.")
    usd_per_hour: float = Field(ge=0, description="Price of the reservation, used or not, USD an hour.")


def read_stack_settings(stack: str, file: Path | None) -> StackSettings:
    """Return the settings of a stack's file. Raises InputError."""
    path = file or find_stack_file(stack, PROJECT_ROOT / "stacks")
    config = read_config(path, str(file) if file else f"stacks/{path.name}")
    return load_settings(config.get(CONFIG_KEY), PROJECT_ROOT, path.name)


def hold_capacity(
    cluster: Cluster, settings: StackSettings, hours: float, display: Display, confirm: Callable[[str], None]
) -> HeldCapacity:
    """Reserve the capacity of the stack's on-demand GPU nodes for `hours`, in the first zone that has all of it.

    Returns the existing reservation if the stack has one. `confirm` receives the price and raises to refuse it. Raises
    InputError for a stack whose launch reserves nothing, and CapacityError.
    """
    groups = [group for group in settings.groups if settings.reserves_capacity(group)]
    if not groups:
        reason, fix = "its launch reserves no capacity", "Use it with on-demand GPU nodes and capacity.reserve: true"
        raise InputError([Problem("--stack", cluster.stack, reason, fix, "nothing_to_reserve")])
    (group,) = groups
    price = group.nodes * node_usd_per_hour(settings, group)
    held_tags = {tags.STACK: cluster.stack, tags.ROLE: tags.HELD_CAPACITY}
    if existing := find_reservations(cluster.region, held_tags):
        display.line("capacity", f"trainyard reserve has already created {existing[0].id} in {existing[0].zone}")
        return _result(wait_until_active(cluster.region, existing[0], display), price)
    zones = _zones(cluster, settings)
    where = f"{group.nodes} x {settings.instance_type} in {cluster.region}"
    confirm(f"Reserve {where} for {price:,.2f} USD per hour, {hours:g} hours?")
    placement_group = None
    if any(map(settings.in_placement_group, settings.groups)):
        name = f"trainyard-{cluster.stack}-{secrets.token_hex(4)}"
        placement_group = placement.create_cluster_group(cluster.region, name, held_tags).arn
    request = CapacityRequest(
        region=cluster.region,
        instance_type=settings.instance_type,
        instances=group.nodes,
        zones=zones,
        placement_group_arn=placement_group,
        tags={**held_tags, "Name": f"trainyard-{cluster.stack}-held-capacity"},
        hold_seconds=hours * 3600,
        usd_per_hour=node_usd_per_hour(settings, group),
        wait_minutes=settings.capacity.wait_minutes,
    )
    try:
        return _result(reserve_capacity(request, display), price)
    except BaseException:
        delete_held_placement_groups(cluster, display)
        raise


def cancel_held_capacity(cluster: Cluster, display: Display) -> list[str]:
    """Cancel the reservation of `trainyard reserve` and delete its placement group; return the reservation's id.

    Raises InputError when the active run uses it.
    """
    held_tags = {tags.STACK: cluster.stack, tags.ROLE: tags.HELD_CAPACITY}
    names = [each.id for each in find_reservations(cluster.region, held_tags)]
    run = cluster.current_run()
    if run is not None and (used := set(names) & set(run.reservations)) and cluster.outcome(run.run) is None:
        reason, fix = f"run {run.run} is active and uses it", f"End the run: trainyard stop --stack {cluster.stack}"
        raise InputError([Problem("--cancel", ", ".join(sorted(used)), reason, fix, "reservation_in_use")])
    cancel_reservations(cluster.region, names, display)
    delete_held_placement_groups(cluster, display)
    return names


def _zones(cluster: Cluster, settings: StackSettings) -> list[str]:
    """Return the zones to search: of the deployed stack's subnets, else of the existing subnet in the settings, else
    of capacity.zones, else all that offer the instance types.
    """
    if cluster.is_deployed:
        subnets = (subnet for group in cluster.manifest.groups for subnet in group.subnets)
        return list(dict.fromkeys(subnet.zone for subnet in subnets))
    if settings.network.existing:
        return [subnet_zone(cluster.region, settings.network.existing.subnet_id)]
    offering = offering_zones(cluster.region, settings.required_types)
    zones = settings.capacity.zones or offering
    if unusable := [zone for zone in zones if zone not in offering]:
        names = " and ".join(settings.required_types)
        reason = f"{cluster.region} does not offer {names} in {', '.join(unusable)}"
        fix = f"Use {', '.join(offering)}" if offering else "Choose other types, or another region"
        raise InputError([Problem("capacity.zones", list(zones), reason, fix, "zone_without_types")])
    return list(zones)


def _result(reservation: CapacityReservation, price: float) -> HeldCapacity:
    return HeldCapacity(
        reservation=reservation.id,
        instance_type=reservation.instance_type,
        instances=reservation.instances,
        zone=reservation.zone,
        placement_group=reservation.placement_group_arn,
        usd_per_hour=round(price, 2),
    )
