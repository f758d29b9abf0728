"""Messages of a failed launch: what still runs or is billed, and how to end it."""

from collections.abc import Collection, Iterable, Mapping

from trainyard.models.manifest import Manifest

TERMINATE_BY_HAND = (
    "the lease or the controller terminates them later; to do it now: aws autoscaling "
    "terminate-instance-in-auto-scaling-group --should-decrement-desired-capacity --instance-id ID"
)


def describe_remaining_cost(manifest: Manifest, held: str) -> str:
    """Return what is billed after a launch without capacity, and how to continue. `held`: text on held capacity."""
    stack, price = manifest.stack, manifest.base_usd_per_hour
    zones = sorted({subnet.zone for group in manifest.groups for subnet in group.subnets})
    files = ", file system" if manifest.fsx else ""
    moves = f" (the file system is in {', '.join(zones)}; to search all zones first: trainyard reserve -s {stack})"
    return (
        f"The cluster has no workers and costs {price:,.2f} USD per hour (head, network{files}). {held}To "
        f"try again: trainyard up -s {stack}{moves if manifest.fsx else ''}; to end it: trainyard destroy -s {stack}"
    )


def describe_not_terminated(prices: Mapping[str, float]) -> str:
    """Return what nodes cost that AWS did not terminate. `prices`: node -> maximum price, USD an hour."""
    nodes = ", ".join(f"{name} ({price:,.2f})" for name, price in sorted(prices.items()))
    return f"AWS did not terminate nodes that cost {sum(prices.values()):,.2f} USD per hour: {nodes}"


def describe_remaining_reservations(cause: str, reservations: Iterable[str], stack: str) -> str:
    """Return the message for a launch that could not be undone before it added nodes. `cause`: one or two sentences."""
    names = ", ".join(reservations)
    reserved = (
        f" Reserved capacity is billed until AWS ends it within an hour after the lease: {names}." if names else ""
    )
    return f"{cause} No node was added.{reserved} Then launch again: trainyard up -s {stack}"


def describe_remaining_nodes(cause: str, nodes: Collection[str], manifest: Manifest) -> str:
    """Return the message for a launch that could not be undone after it had requested nodes."""
    names = ", ".join(nodes) or "all that AWS launched"
    price = sum(group.nodes * group.node_usd_per_hour for group in manifest.groups)
    return (
        f"{cause} The nodes that it added continue to run ({names}) and are billed: all nodes of the stack cost at "
        f"most {price:,.2f} USD per hour. The controller starts the job on them, or terminates them after "
        f"launch.startup_timeout_minutes. Without the controller, the lease of {manifest.limits.lease_minutes:g} "
        f"minutes terminates them. To terminate them now: trainyard stop -s {manifest.stack}"
    )
