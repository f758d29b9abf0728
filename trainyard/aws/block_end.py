"""When a run in a Capacity Block for ML has to end: before EC2 terminates the instances of the block."""

from typing import NamedTuple

from botocore.exceptions import ClientError

from trainyard.aws.clients import client
from trainyard.aws.reservations import describe_reservation

# EC2 terminates the instances that still run 30 minutes before the end (EC2 user guide, "Capacity Blocks for ML"). The
# instances of a P6e-GB200 UltraServer have to be terminated 60 minutes before it (same page). The page names no time
# for other UltraServers (Trn2): the longer one is an assumption, which costs 30 minutes if it is wrong.
_TERMINATION_SECONDS, _ULTRASERVER_TERMINATION_SECONDS = 1800.0, 3600.0
# Types that exist only in UltraServers (EC2 user guide, "Capacity Blocks for ML", supported instance types).
_ULTRASERVER_TYPES = ("p6e-gb", "trn2u.")
# Time for the last checkpoint before the termination.
LAST_CHECKPOINT_SECONDS = 600.0


def termination_seconds(instance_type: str, ultraserver_type: str | None = None) -> float:
    """Return the seconds from the termination of a Capacity Block's instances until its end.

    `ultraserver_type`: UltraserverType of the block (API reference, CapacityBlock), where the caller can read it.
    """
    is_ultraserver = bool(ultraserver_type) or instance_type.startswith(_ULTRASERVER_TYPES)
    return _ULTRASERVER_TERMINATION_SECONDS if is_ultraserver else _TERMINATION_SECONDS


def usable_end(end: float, instance_type: str, ultraserver_type: str | None = None) -> float:
    """Return the Unix time until which a run may use a Capacity Block that ends at `end` (Unix time)."""
    return end - termination_seconds(instance_type, ultraserver_type) - LAST_CHECKPOINT_SECONDS


class BlockStatus(NamedTuple):
    """State of a Capacity Block, and the Unix time until which a run may use it; None when it has no end."""

    state: str
    usable_end: float | None


def read_block(region: str, reservation: str) -> BlockStatus:
    """Return the status of a Capacity Block now.

    An extension changes the end, not the id of the reservation (EC2 user guide, "Extend Capacity Blocks"). Raises
    ClientError.
    """
    described = describe_reservation(region, reservation)
    state = str(described["State"])
    if "EndDate" not in described:
        return BlockStatus(state, None)
    ultraserver_type = _ultraserver_type(region, described.get("CapacityBlockId"))
    return BlockStatus(state, usable_end(described["EndDate"].timestamp(), described["InstanceType"], ultraserver_type))


def _ultraserver_type(region: str, block: str | None) -> str | None:
    """Return the UltraServer type of a block; None without one, and when it cannot be read: the type decides then."""
    if block is None:
        return None
    try:
        blocks = client("ec2", region).describe_capacity_blocks(CapacityBlockIds=[block])["CapacityBlocks"]
    except ClientError:
        return None
    return blocks[0].get("UltraserverType") if blocks else None
