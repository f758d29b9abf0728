"""API actions on existing Capacity Blocks: their description, and the offerings and purchases of extensions.

Sources: EC2 user guide, "Extend Capacity Blocks"; API reference of these actions and of CapacityBlockExtension. AWS
documents no error codes for extensions ("Error codes for the Amazon EC2 API" has those of block offerings only): all
codes of this module are assumptions.
"""

from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.block_offerings import BLOCK_HOURS, block_price, offering_id
from rehearsal.aws.ec2.block_payments import Payment
from rehearsal.aws.ec2.reservations import CapacityReservation, find_reservation, reservations
from rehearsal.aws.moto_extension import ec2_error, extend

_HOUR_SECONDS, _DAY_SECONDS = 3600.0, 86400.0
# "up to a minimum of 1 hour or a maximum of 56 days before it expires"; "up to 182 days (26 weeks) total"
_LATEST_SECONDS, _EARLIEST_SECONDS, _MAXIMUM_SECONDS = _HOUR_SECONDS, 56 * _DAY_SECONDS, 182 * _DAY_SECONDS
# The payment has to be processed "up to 35 minutes before the Capacity Block is scheduled to end".
_LATEST_PAYMENT_SECONDS = 35 * 60.0


class BlockExtension:
    """A purchased extension, with the fields of CapacityBlockExtension as attributes. Its payment moves the end."""

    currency_code = "USD"

    def __init__(self, reservation: CapacityReservation, offering: dict[str, Any]) -> None:
        self.reservation, self.purchased = reservation, CLOCK.now()
        self.capacity_reservation_id = reservation.id
        self.instance_type, self.availability_zone = reservation.instance_type, reservation.availability_zone
        self.instance_count = reservation.total_instance_count
        self.capacity_block_extension_offering_id = offering["CapacityBlockExtensionOfferingId"]
        self.capacity_block_extension_duration_hours = offering["CapacityBlockExtensionDurationHours"]
        self.capacity_block_extension_purchase_date = _utc(self.purchased)
        self.capacity_block_extension_start_date = offering["CapacityBlockExtensionStartDate"]
        self.capacity_block_extension_end_date = offering["CapacityBlockExtensionEndDate"]
        self.upfront_fee = offering["UpfrontFee"]
        assert reservation.end is not None
        self.payment = Payment(reservation.end - _LATEST_PAYMENT_SECONDS, self._move_end)

    @property
    def capacity_block_extension_status(self) -> str:
        """`payment-pending`, `payment-succeeded` or `payment-failed`."""
        return f"payment-{self.payment.status}"

    def _move_end(self) -> None:
        assert self.reservation.end is not None
        self.reservation.end += self.capacity_block_extension_duration_hours * _HOUR_SECONDS


def _extensions(backend: Any) -> list[BlockExtension]:
    extensions: list[BlockExtension] = vars(backend).setdefault("_capacity_block_extensions", [])
    return extensions


def _find_extensible(backend: Any, name: str, hours: int) -> CapacityReservation:
    """Return the Capacity Block. Raises EC2's error when it cannot be extended by `hours`."""
    reservation = find_reservation(backend, name)
    if not reservation.is_block or reservation.end is None:
        raise ec2_error("InvalidParameterValue", f"The capacity reservation {name} is not a Capacity Block.")
    pending = any(each.reservation is reservation and each.payment.status == "pending" for each in _extensions(backend))
    if reservation.state not in {"active", "scheduled"} or pending:
        state = "has an extension that is payment-pending" if pending else f"is {reservation.state}"
        raise ec2_error("InvalidCapacityReservationState", f"The Capacity Block {name} {state} and can't be extended.")
    remaining = reservation.end - CLOCK.now()
    if not _LATEST_SECONDS <= remaining <= _EARLIEST_SECONDS:
        raise ec2_error(
            "OperationNotPermitted", f"The Capacity Block {name} can be extended from 56 days to 1 hour before its end."
        )
    total = reservation.end - reservation.start + hours * _HOUR_SECONDS
    if hours not in BLOCK_HOURS or total > _MAXIMUM_SECONDS:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{hours}' for CapacityBlockExtensionDurationHours.")
    return reservation


def describe_capacity_block_extension_offerings(self: Any) -> ActionResult:
    """Return one offering. Capacity for extensions is unlimited."""
    backend, hours = self.ec2_backend, self._get_int_param("CapacityBlockExtensionDurationHours")
    reservation = _find_extensible(backend, self._get_param("CapacityReservationId"), hours)
    assert reservation.end is not None
    count, instance_type = reservation.total_instance_count, reservation.instance_type
    offering = {
        "CapacityBlockExtensionOfferingId": offering_id("extension", reservation.id, hours, reservation.end),
        "InstanceType": instance_type,
        "InstanceCount": count,
        "AvailabilityZone": reservation.availability_zone,
        "AvailabilityZoneId": reservation.availability_zone_id,
        "StartDate": _utc(reservation.start),
        "CapacityBlockExtensionStartDate": _utc(reservation.end),
        "CapacityBlockExtensionEndDate": _utc(reservation.end + hours * _HOUR_SECONDS),
        "CapacityBlockExtensionDurationHours": hours,
        "UpfrontFee": block_price(instance_type, count, hours),
        "CurrencyCode": "USD",
        "Tenancy": "default",
    }
    offers: dict[str, Any] = vars(backend).setdefault("_capacity_block_extension_offers", {})
    offers[str(offering["CapacityBlockExtensionOfferingId"])] = {**offering, "reservation": reservation.id}
    return ActionResult({"CapacityBlockExtensionOfferings": [offering]})


def purchase_capacity_block_extension(self: Any) -> ActionResult:
    """Purchase an extension, which is payment-pending at first."""
    backend, name = self.ec2_backend, self._get_param("CapacityBlockExtensionOfferingId")
    offers = vars(backend).get("_capacity_block_extension_offers", {})
    offering = offers.get(name)
    if offering is None or offering["reservation"] != self._get_param("CapacityReservationId"):
        raise ec2_error("InvalidCapacityBlockExtensionOfferingId.NotFound", f"The offering {name} does not exist.")
    hours = offering["CapacityBlockExtensionDurationHours"]
    extension = BlockExtension(_find_extensible(backend, offering["reservation"], hours), offering)
    del offers[name]
    _extensions(backend).append(extension)
    return ActionResult({"CapacityBlockExtensions": [extension]})


def describe_capacity_block_extension_history(self: Any) -> ActionResult:
    """Return the purchased extensions of these Capacity Blocks, or of all.

    API reference, DescribeCapacityBlockExtensionHistory. One page; filters are ignored.
    """
    names = self._get_param("CapacityReservationIds", [])
    for name in names:
        find_reservation(self.ec2_backend, name)
    selected = [each for each in _extensions(self.ec2_backend) if not names or each.reservation.id in names]
    return ActionResult({"CapacityBlockExtensions": selected})


def describe_capacity_blocks(self: Any) -> ActionResult:
    """Return the Capacity Blocks, each with its reservation; `UltraserverType` for those of UltraServers."""
    names = self._get_param("CapacityBlockIds", [])
    blocks = [each for each in reservations(self.ec2_backend).values() if each.is_block]
    selected = [each for each in blocks if not names or each.capacity_block_id in names]
    if missing := set(names) - {each.capacity_block_id for each in selected}:
        raise ec2_error("InvalidCapacityBlockId.NotFound", f"The Capacity Block {min(missing)} does not exist.")
    return ActionResult({"CapacityBlocks": [_describe_block(each) for each in selected]})


def _describe_block(block: CapacityReservation) -> dict[str, Any]:
    return {
        "CapacityBlockId": block.capacity_block_id,
        "UltraserverType": block.ultraserver_type,
        "AvailabilityZone": block.availability_zone,
        "AvailabilityZoneId": block.availability_zone_id,
        "CapacityReservationIds": [block.id],
        "StartDate": block.start_date,
        "EndDate": block.end_date,
        "CreateDate": block.create_date,
        "State": block.state,
    }


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC).replace(tzinfo=None)


def install() -> None:
    """Add the actions to moto."""
    extend(
        EC2Response,
        describe_capacity_block_extension_offerings,
        purchase_capacity_block_extension,
        describe_capacity_block_extension_history,
        describe_capacity_blocks,
    )
