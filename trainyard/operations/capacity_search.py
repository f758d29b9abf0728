"""Reserve the capacity of several instances in one Availability Zone: try zone by zone, and retry."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from trainyard.aws import tags
from trainyard.aws.reservations import CapacityReservation, create_reservation, find_reservations
from trainyard.config.catalog import catalog
from trainyard.config.quotas import increase_command, quota_of
from trainyard.operations.errors import CapacityError
from trainyard.operations.pending_reservations import cancel_reservations, list_command, wait_until_active
from trainyard.operations.progress import Display
from trainyard.operations.signals import ignore_signals
from trainyard.operations.waiting import sleep_with_checks
from trainyard.quantity import quantity

# Error codes of CreateCapacityReservation (API reference, "Error codes for the Amazon EC2 API"). After a retryable
# code, another zone or a later request may succeed. After an ambiguous code, or without a response, the reservation may
# exist.
_RETRYABLE_CODES = frozenset(["InsufficientInstanceCapacity", "RequestLimitExceeded", "Unsupported"])
_AMBIGUOUS_CODES = frozenset(["InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"])
_QUOTA_CODES = frozenset(["InstanceLimitExceeded", "VcpuLimitExceeded"])
MAX_ATTEMPTS, RETRY_DELAY_SECONDS = 5, 2.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 15.0, 300.0


@dataclass(frozen=True, kw_only=True)
class CapacityRequest:
    """The capacity to reserve: all `instances` in one of the `zones`, which are tried in order.

    `launch_id`: the launch that uses the reservation. `hold_seconds`: seconds from its creation until AWS ends it.
    `usd_per_hour`: price of one instance. `wait_minutes`: how long to retry.
    """

    stack: str
    region: str
    instance_type: str
    instances: int
    zones: Sequence[str]
    placement_group_arn: str | None
    tags: Mapping[str, str]
    launch_id: str
    hold_seconds: float
    usd_per_hour: float
    wait_minutes: float

    @property
    def all_tags(self) -> dict[str, str]:
        """`tags`, and the tag of the launch."""
        return {**self.tags, tags.LAUNCH: self.launch_id}

    @property
    def summary(self) -> str:
        """Number and type of the instances."""
        return f"{self.instances} x {self.instance_type}"


def reserve_capacity(
    request: CapacityRequest, display: Display, before_attempt: Callable[[], None] = lambda: None
) -> CapacityReservation:
    """Reserve the capacity in the first zone that has all of it; retry with back-off until `wait_minutes`.

    `before_attempt` raises an error to end the search, and the wait for a pending reservation. Other reservations of
    the launch that have the request's tags are cancelled: EC2 did not respond to their creation. Raises CapacityError,
    which names the zones and their error codes.
    """
    try:
        result = _search(request, display, before_attempt)
    except BaseException:
        with ignore_signals():
            _cancel_others(request, None, display)
        raise
    _cancel_others(request, result.id, display)
    return result


@dataclass(frozen=True)
class _ZoneError:
    """Why a zone has no reservation. `code`: AWS's error code, or the name of the exception without a response."""

    code: str
    message: str


def _search(request: CapacityRequest, display: Display, before_attempt: Callable[[], None]) -> CapacityReservation:
    start, delay, attempt = time.monotonic(), FIRST_RETRY_SECONDS, 1
    deadline = start + request.wait_minutes * 60
    zone_errors: dict[str, _ZoneError] = {}
    while True:
        before_attempt()
        if reservation := _try_zones(request, attempt, zone_errors, display, before_attempt):
            return reservation
        tried = _format_zone_errors(zone_errors)
        if time.monotonic() + delay > deadline:
            raise CapacityError(
                f"no Availability Zone has capacity for {request.summary} after {quantity(attempt, 'attempt')} in "
                f"{(time.monotonic() - start) / 60:.1f} minutes (capacity.wait_minutes: {request.wait_minutes:g}): "
                f"{tried}. Increase capacity.wait_minutes, try another instance type or region, add zones to "
                "capacity.zones if it is set, or buy a Capacity Block (trainyard blocks -s "
                f"{request.stack})"
            )
        remaining = max(0.0, deadline - time.monotonic()) / 60
        text = f"attempt {attempt}: none for {request.summary} ({tried}); next in {delay:.0f} s"
        display.line("capacity", f"{text}, for {remaining:.1f} more minutes")
        sleep_with_checks(delay, before_attempt)
        attempt, delay = attempt + 1, min(2 * delay, LAST_RETRY_SECONDS)


def _try_zones(
    request: CapacityRequest,
    attempt: int,
    zone_errors: dict[str, _ZoneError],
    display: Display,
    before_poll: Callable[[], None],
) -> CapacityReservation | None:
    """Return the active reservation in the first zone with the capacity; None without one.

    Writes the errors by zone, and displays each whose code differs from that of the attempt before.
    """
    for zone in request.zones:
        display.detail("capacity", f"attempt {attempt}: {request.summary} in {zone}")
        result = _create(request, zone, zone_errors)
        if isinstance(result, CapacityReservation):
            result = _activate(request, result, display, before_poll)
        if isinstance(result, CapacityReservation):
            price = request.instances * request.usd_per_hour
            text = f"reserved {request.summary} in {zone} ({result.id}), {price:,.2f} USD per hour"
            display.line("capacity", text)
            return result
        if zone not in zone_errors or zone_errors[zone].code != result.code:
            display.line("capacity", f"no {request.summary} in {zone}: {result.code}: {result.message}")
        zone_errors[zone] = result
    return None


def _activate(
    request: CapacityRequest, reservation: CapacityReservation, display: Display, before_poll: Callable[[], None]
) -> CapacityReservation | _ZoneError:
    """Return the active reservation, or an error: EC2 may find a shortage while it is pending."""
    try:
        result = wait_until_active(request.region, reservation, display, before_poll)
    except BaseException:
        with ignore_signals():  # here, because EC2 may not list it yet
            _cancel(request, [reservation.id], display)
        raise
    return result if result.state == "active" else _ZoneError(result.state, f"EC2 did not activate {result.id}")


def _format_zone_errors(zone_errors: Mapping[str, _ZoneError]) -> str:
    return ", ".join(f"{zone}: {error.code}" for zone, error in zone_errors.items())


def _create(
    request: CapacityRequest, zone: str, zone_errors: Mapping[str, _ZoneError]
) -> CapacityReservation | _ZoneError:
    """Return the reservation, or the error if another zone or a later request may succeed.

    Raises CapacityError for any other error of AWS, with the `zone_errors` of other zones.

    A request without a response is repeated with its token: EC2 then returns the reservation that it created (EC2
    developer guide, "Ensuring idempotency in Amazon EC2 API requests").
    """
    token, end = str(uuid.uuid4()), time.time() + request.hold_seconds
    for number in range(MAX_ATTEMPTS):
        time.sleep(number * RETRY_DELAY_SECONDS)
        try:
            return create_reservation(
                request.region,
                instance_type=request.instance_type,
                zone=zone,
                instances=request.instances,
                end=end,
                placement_group_arn=request.placement_group_arn,
                tags=request.all_tags,
                token=token,
            )
        except HTTPClientError as error:
            zone_error = _ZoneError(type(error).__name__, str(error))
        except ClientError as error:
            details = error.response["Error"]
            zone_error = _ZoneError(details["Code"], details.get("Message", ""))
            if zone_error.code in _RETRYABLE_CODES:
                return zone_error
            if zone_error.code not in _AMBIGUOUS_CODES:
                others = f"; no capacity in {_format_zone_errors(zone_errors)}" if zone_errors else ""
                action = f". {request.summary}: {_quota_problem(request)}" if zone_error.code in _QUOTA_CODES else ""
                message = f"AWS does not reserve {request.summary} in {zone}: {error}{others}{action}"
                raise CapacityError(message) from error
    return zone_error


def _quota_problem(request: CapacityRequest) -> str:
    """Return the quota that the request exceeds, and how to increase it."""
    entry = catalog().get(request.instance_type)
    assert entry is not None, f"{request.instance_type} is not in the catalog"
    quota = quota_of(entry, "on-demand")
    assert quota is not None, f"AWS has no On-Demand quota for {request.instance_type}"
    return (
        f"it needs {entry.vcpus * request.instances} vCPUs of the quota {quota.name} ({quota.code}), which other "
        "instances and reservations of the account use too. Terminate them, or request a larger quota: "
        f"{increase_command('ec2', quota.code, 'N', request.region)}"
    )


def _cancel_others(request: CapacityRequest, kept: str | None, display: Display) -> None:
    """Cancel the reservations of the request except `kept` and those that a later launch uses.

    An error is displayed.
    """
    try:
        others = [each.id for each in find_reservations(request.region, request.all_tags) if each.id != kept]
        _cancel(request, others, display)
    except (BotoCoreError, ClientError) as error:
        display.line(
            "capacity",
            f"the reservations of this launch could not be listed: {error}. One whose creation had no response is "
            f"billed until its end date. To list them: {list_command(request.region, request.tags[tags.STACK])}",
        )


def _cancel(request: CapacityRequest, reservation_ids: list[str], display: Display) -> None:
    reason = ", which the launch does not use: EC2 did not respond to its creation, or it was pending"
    cancel_reservations(request.region, reservation_ids, display, launch_id=request.launch_id, reason=reason)
