"""On-Demand Capacity Reservations: capacity that is billed like running instances, used or not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws.block_payments import describe_failed_payment
from trainyard.aws.clients import client
from trainyard.aws.tags import LAUNCH, tag_filters, tag_list, tag_specifications

ENDED_STATES = frozenset(["expired", "cancelled", "failed", "unsupported", "payment-failed"])


def describe_end(reservation_id: str, state: str) -> str | None:
    """Return the reason if a reservation in this state has ended; None if it accepts launches now, or may later.

    States: API reference, CapacityReservation.
    """
    if state not in ENDED_STATES:
        return None
    if state == "payment-failed":
        return describe_failed_payment(reservation_id)
    return f"{reservation_id} is {state}"


@dataclass(frozen=True)
class CapacityReservation:
    """A reservation. `available`: instances that can be launched into it now; `state`: CapacityReservation, State.

    `end`: Unix time in seconds at which AWS ends it; None without an end. `launch_id`: the launch that uses it.
    """

    id: str
    instance_type: str
    zone: str
    instances: int
    available: int
    placement_group_arn: str | None
    state: str
    end: float | None
    launch_id: str | None


def create_reservation(
    region: str,
    *,
    instance_type: str,
    zone: str,
    instances: int,
    end: float,
    placement_group_arn: str | None,
    tags: Mapping[str, str],
    token: str,
) -> CapacityReservation:
    """Reserve the capacity of `instances` instances, all or none, for launches that target the reservation.

    `end`: Unix time in seconds; AWS ends the reservation within an hour of it. `token` makes the call idempotent.
    Raises ClientError without a retry: the code InsufficientInstanceCapacity, which has HTTP status 500, when the zone
    has too little capacity.
    """
    placement = {"PlacementGroupArn": placement_group_arn} if placement_group_arn else {}
    response = client("ec2", region, max_attempts=1).create_capacity_reservation(
        InstanceType=instance_type,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=zone,
        InstanceCount=instances,
        InstanceMatchCriteria="targeted",
        EndDateType="limited",
        EndDate=_time(end),
        TagSpecifications=tag_specifications(tags, ["capacity-reservation"]),
        ClientToken=token,
        **placement,
    )
    return _parse(response["CapacityReservation"])


def find_reservations(region: str, tags: Mapping[str, str]) -> list[CapacityReservation]:
    """Return the active and pending reservations with these tags, largest first.

    Capacity Blocks are omitted: they are paid in advance, and can be neither resized nor cancelled (EC2 user guide,
    "Capacity Blocks for ML").
    """
    pages = (
        client("ec2", region)
        .get_paginator("describe_capacity_reservations")
        .paginate(Filters=[*tag_filters(tags), {"Name": "state", "Values": ["active", "pending"]}])
    )
    described = (reservation for page in pages for reservation in page["CapacityReservations"])
    cancellable = [_parse(each) for each in described if each["ReservationType"] != "capacity-block"]
    return sorted(cancellable, key=lambda reservation: reservation.instances, reverse=True)


def read_reservation(region: str, reservation_id: str) -> CapacityReservation:
    """Return a reservation in any state. Raises ClientError."""
    return _parse(describe_reservation(region, reservation_id))


def find_source(region: str, reservation_id: str) -> str | None:
    """Return the id of the reservation that an interruptible reservation was created from; None if it has none."""
    info = describe_reservation(region, reservation_id).get("InterruptionInfo") or {}
    return info.get("SourceCapacityReservationId")


def is_own(region: str, reservation_id: str) -> bool:
    """Return whether the account owns a reservation. One that another account has not shared does not exist here.

    Raises ClientError for another error.
    """
    try:
        owner = describe_reservation(region, reservation_id)["OwnerId"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "InvalidCapacityReservationId.NotFound":
            raise
        return False
    return bool(owner == client("sts", region).get_caller_identity()["Account"])


def find_reclaim_target(region: str, source_id: str) -> int | None:
    """Return the number of instances that an interruptible reservation has after a reclaim; None without a reclaim.

    `source_id`: the reservation that it was created from. EC2 user guide, "Interruptible Capacity Reservations for
    capacity owners": the status of the allocation is `updating` during a reclaim.
    """
    allocation = describe_reservation(region, source_id).get("InterruptibleCapacityAllocation") or {}
    if allocation.get("Status") != "updating" or allocation["TargetInstanceCount"] >= allocation["InstanceCount"]:
        return None
    target: int = allocation["TargetInstanceCount"]
    return target


def describe_reservation(region: str, reservation_id: str) -> Mapping[str, Any]:
    """Return EC2's description of a reservation or Capacity Block in any state. Raises ClientError."""
    response = client("ec2", region).describe_capacity_reservations(CapacityReservationIds=[reservation_id])
    description: Mapping[str, Any] = response["CapacityReservations"][0]
    return description


def resize_reservation(region: str, reservation_id: str, instances: int) -> None:
    """Set the number of instances of a reservation. Raises ClientError without capacity for additional instances."""
    ec2 = client("ec2", region, max_attempts=1)
    ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=instances)


def set_launch(region: str, reservation_id: str, launch_id: str) -> None:
    """Tag a reservation with the launch that uses it. Raises ClientError."""
    client("ec2", region).create_tags(Resources=[reservation_id], Tags=tag_list({LAUNCH: launch_id}))


def extend_reservations(region: str, reservation_ids: Iterable[str], end: float) -> None:
    """Move the end of reservations to `end` (Unix time, seconds)."""
    for reservation_id in reservation_ids:
        client("ec2", region).modify_capacity_reservation(
            CapacityReservationId=reservation_id, EndDateType="limited", EndDate=_time(end)
        )


def cancel_reservation(region: str, reservation_id: str) -> bool:
    """Cancel a reservation, unless it has ended. Its instances continue to run as On-Demand Instances.

    Returns False for a pending reservation, which EC2 does not cancel (API reference, CancelCapacityReservation). AWS
    documents no error code for each state, so an error is followed by a call that reads the state. Raises ClientError.
    """
    ec2 = client("ec2", region)
    try:
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    except ClientError:
        state = describe_reservation(region, reservation_id)["State"]
        if state == "pending":
            return False
        if state not in ENDED_STATES:  # it may have been pending until now
            ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    return True


def _time(unix_time: float) -> datetime:
    return datetime.fromtimestamp(unix_time, UTC)


def _parse(reservation: Mapping[str, Any]) -> CapacityReservation:
    return CapacityReservation(
        id=reservation["CapacityReservationId"],
        instance_type=reservation["InstanceType"],
        zone=reservation["AvailabilityZone"],
        instances=reservation["TotalInstanceCount"],
        available=reservation["AvailableInstanceCount"],
        placement_group_arn=reservation.get("PlacementGroupArn"),
        state=reservation["State"],
        end=reservation["EndDate"].timestamp() if "EndDate" in reservation else None,
        launch_id=next((tag["Value"] for tag in reservation.get("Tags", ()) if tag["Key"] == LAUNCH), None),
    )
