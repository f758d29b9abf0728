"""Cancel all capacity reservations of a stack, and delete the placement groups of `trainyard reserve`."""

import time

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import placement, reservations, tags
from trainyard.aws.reservations import CapacityReservation
from trainyard.config.catalog import catalog
from trainyard.operations.cluster import Cluster
from trainyard.operations.pending_reservations import cancel_command, cancel_reservations, list_command
from trainyard.operations.progress import Display

# For how long EC2 may describe a cancelled reservation as active: an assumption, EC2 is eventually consistent.
CANCELLED_TIMEOUT_SECONDS, CANCELLED_POLL_SECONDS = 10.0, 1.0


def cancel_reservations_of_stack(region: str, stack_tag: str, display: Display) -> list[str]:
    """Cancel every capacity reservation of the stack; return a text for each that remains and is billed.


    The texts, which are also displayed, have its price and the command that cancels it. An error is displayed.
    """
    try:
        reservation_ids = [each.id for each in reservations.find_reservations(region, {tags.STACK: stack_tag})]
        cancel_reservations(region, reservation_ids, display)
        remaining = reservations.find_reservations(region, {tags.STACK: stack_tag})
        deadline = time.monotonic() + CANCELLED_TIMEOUT_SECONDS
        while remaining and time.monotonic() < deadline:  # EC2 may still describe a cancelled one as active
            time.sleep(CANCELLED_POLL_SECONDS)
            remaining = reservations.find_reservations(region, {tags.STACK: stack_tag})
    except (BotoCoreError, ClientError) as error:
        text = f"the reservations of the stack could not be listed ({error}): they are billed until they end"
        texts = [f"{text}. To list them: {list_command(region, stack_tag)}"]
    else:
        texts = [_describe_remaining(region, each) for each in remaining]
    for text in texts:
        display.line("capacity", text)
    return texts


def _describe_remaining(region: str, reservation: CapacityReservation) -> str:
    entry = catalog().get(reservation.instance_type)
    price = reservation.instances * ((entry.on_demand_usd if entry else None) or 0.0)
    return (
        f"{reservation.id} ({reservation.instances} x {reservation.instance_type} in {reservation.zone}) is "
        f"{reservation.state} and costs {price:,.2f} USD per hour until it ends; to cancel it: "
        f"{cancel_command(region, reservation.id)}"
    )


def delete_held_placement_groups(cluster: Cluster, display: Display, *, keep_used: bool = True) -> None:
    """Delete the placement groups that `trainyard reserve` created for the stack.

    `keep_used`: except those of the manifest, which the launch templates require. An error, for example of a group with
    an instance, is displayed: placement groups cost nothing.
    """
    groups_in_use = cluster.manifest.groups if keep_used and cluster.is_deployed else ()
    used = {group.placement_group_arn for group in groups_in_use}
    try:
        for group in placement.find_placement_groups(cluster.region, tags.held_capacity_tags(cluster.stack_tag)):
            if group.arn not in used:
                placement.delete_placement_group(cluster.region, group.name)
    except (BotoCoreError, ClientError) as error:
        display.line("capacity", f"the placement groups of trainyard reserve were not deleted: {error}")
