"""Messages of a launch that failed: what still runs or is billed, and how to end it."""

from collections.abc import Iterable, Mapping

from trainyard.models.manifest import Manifest

TERMINATE_BY_HAND = (
    "the lease or the controller terminates them later; to do it now: aws autoscaling "
    "terminate-instance-in-auto-scaling-group --should-decrement-desired-capacity --instance-id ID"
)


def describe_remaining_cost(manifest: Manifest, held: str) -> str:
    """Return what is billed after a launch without capacity, and how to continue. `held`: text on held capacity."""
    stack, price = manifest.stack, manifest.base_usd_per_hour
    zones = sorted({subnet.zone for group in manifest.groups for subnet in group.subnets})
    moves = (
        f" (the file system is in {', '.join(zones)}; with another zone in capacity.zones it replaces head and file "
        "system)"
    )
    return (
        f"The cluster stays without workers and costs {price:,.2f} USD per hour (head, network, file system). {held}To "
        f"try again: pulumi up -s {stack}{moves if manifest.fsx else ''}; to end it: trainyard destroy --stack {stack}"
    )


def describe_not_terminated(prices: Mapping[str, float]) -> str:
    """Return what nodes cost that AWS did not terminate. `prices`: node -> maximum price, USD an hour."""
    nodes = ", ".join(f"{name} ({price:,.2f})" for name, price in sorted(prices.items()))
    return f"AWS did not terminate nodes that cost {sum(prices.values()):,.2f} USD per hour: {nodes}"


def describe_expiration_before_nodes(reason: str, reservations: Iterable[str]) -> str:
    """Return the message for credentials that expired before the launch added nodes."""
    names = ", ".join(reservations)
    reserved = (
        f" Reserved capacity is billed until AWS ends it within an hour after the lease: {names}." if names else ""
    )
    return f"{_expired(reason)} No node was added.{reserved} Then launch again: pulumi up"


def describe_expiration_with_nodes(reason: str, nodes: Iterable[str], manifest: Manifest) -> str:
    """Return the message for credentials that expired after the launch had requested nodes."""
    names = ", ".join(nodes) or "all that AWS launched"
    return (
        f"{_expired(reason)} The nodes that it added continue to run ({names}) and are billed: the controller starts "
        "the job on them, or terminates them after launch.startup_timeout_minutes; without the controller, the lease "
        f"of {manifest.limits.lease_minutes:g} minutes terminates them. To terminate them now: trainyard stop --stack "
        f"{manifest.stack}"
    )


def _expired(reason: str) -> str:
    return f"the AWS credentials expired during the launch ({reason}). Renew them."
