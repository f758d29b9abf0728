"""API actions on interruptible Capacity Reservations: create an allocation, and change its number of instances.

Sources: API reference of these actions; EC2 user guide, "Interruptible Capacity Reservations for capacity owners" (one
allocation per source, 1,000 instances at once, a source that is active without end date). Neither these nor "Error
codes for the Amazon EC2 API" name error codes for them: all codes of this module, except that of a repeated client
token, are assumptions.
"""

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from moto.ec2.utils import random_id

from rehearsal.aws.ec2.idempotency import once_per_token
from rehearsal.aws.ec2.interruptible import Allocation, allocate
from rehearsal.aws.ec2.reservations import CapacityReservation, find_reservation
from rehearsal.aws.moto_extension import ec2_error, extend

MAXIMUM_INSTANCES = 1000  # of one request


def create_interruptible_capacity_reservation_allocation(self: Any) -> ActionResult:
    """Create an interruptible reservation from unused instances of an active reservation without end date."""
    backend = self.ec2_backend
    source = find_reservation(backend, self._get_param("CapacityReservationId"))
    count, preference = self._get_int_param("InstanceCount"), self._get_param("ZeroSizePreference") or "default"
    self.error_on_dryrun()

    def create() -> Allocation:
        _validate_source(source)
        if not 1 <= count <= min(MAXIMUM_INSTANCES, source.available_instance_count):
            raise _invalid_count(source, count)
        reservation = allocate(source, random_id("cr", 17), count, preference)
        reservation.add_tags(self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}))
        allocation: Allocation = source.interruptible_capacity_allocation
        return allocation

    operation = "CreateInterruptibleCapacityReservationAllocation"
    return ActionResult(_response(once_per_token(backend, operation, dict(self._get_params()), create)))


def _validate_source(source: CapacityReservation) -> None:
    if source.state != "active" or source.end is not None:
        raise ec2_error(
            "InvalidCapacityReservationState",
            f"The capacity reservation {source.id} must be active and have no end date.",
        )
    existing = source.interruptible_capacity_allocation
    if source.market_type is not None or (existing is not None and existing.status != "canceled"):
        raise ec2_error("OperationNotPermitted", f"{source.id} can't have an additional interruptible allocation.")


def update_interruptible_capacity_reservation_allocation(self: Any) -> ActionResult:
    """Add unused instances of the source to the allocation, or reclaim instances."""
    source = find_reservation(self.ec2_backend, self._get_param("CapacityReservationId"))
    allocation = source.interruptible_capacity_allocation
    self.error_on_dryrun()
    if allocation is None or allocation.status != "active":
        raise ec2_error("OperationNotPermitted", f"{source.id} has no active interruptible allocation.")
    allocation.zero_size_preference = self._get_param("ZeroSizePreference") or allocation.zero_size_preference
    target = self._get_param("TargetInstanceCount")
    if target is not None:
        change = int(target) - allocation.instance_count
        if int(target) < 0 or abs(change) > MAXIMUM_INSTANCES or change > source.available_instance_count:
            raise _invalid_count(source, int(target))
        allocation.set_target(int(target))
    return ActionResult(_response(allocation))


def _invalid_count(source: CapacityReservation, count: int | None) -> Exception:
    available = source.available_instance_count
    return ec2_error("InvalidParameterValue", f"{count} is not valid: {source.id} has {available} available instances.")


def _response(allocation: Allocation) -> dict[str, Any]:
    return {
        "InterruptibleCapacityReservationId": allocation.reservation.id,
        "SourceCapacityReservationId": allocation.source.id,
        "InstanceCount": allocation.instance_count,
        "TargetInstanceCount": allocation.target_instance_count,
        "Status": allocation.status,
        "InterruptionType": allocation.interruption_type,
    }


def install() -> None:
    """Add the actions to moto."""
    extend(
        EC2Response,
        create_interruptible_capacity_reservation_allocation,
        update_interruptible_capacity_reservation_allocation,
    )
