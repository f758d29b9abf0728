"""The active faults and their effect on API calls."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES

from rehearsal.aws.account_file import EC2_KEY_PREFIX
from rehearsal.aws.clock import CLOCK
from rehearsal.aws.faults import (
    DENY_VARIABLE,
    Capacity,
    Deny,
    EventualConsistency,
    ExpiredCredentials,
    Fault,
    FsxDeployment,
    InterfaceQuota,
    MemberOmission,
    Outage,
    PaymentFailure,
    Quota,
    Reclaim,
    ReservationFailure,
    ScalingActivity,
    ServiceOutage,
    SpotInterruption,
    Throttle,
    check_operation,
    parse_denied_operations,
)
from rehearsal.aws.operations import Call


@dataclass
class ApiError(Exception):
    """An error response: HTTP status, error code and message. The server formats it for the service's protocol."""

    status: str
    code: str
    message: str


class InsufficientCapacityError(EC2ClientError):
    """EC2's InsufficientInstanceCapacity error for an instance type and zone."""

    def __init__(self, zone: str, instance_type: str) -> None:
        super().__init__(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested "
            f"({zone}). Our system will be working on provisioning additional capacity.",
        )


@dataclass
class _ActiveFault:
    """An active fault.

    `remaining`: calls still to fail, or instances still to interrupt. `refused`: calls that it refused. `responses`: by
    operation.
    """

    fault: Fault
    remaining: int = 0
    refused: int = 0
    since: float = field(default_factory=CLOCK.now)
    responses: Counter[str] = field(default_factory=Counter)

    @property
    def has_no_effect(self) -> bool:
        """Whether it has certainly had no effect so far; False for limits, which may be high on purpose."""
        if isinstance(self.fault, (Deny, ExpiredCredentials, ServiceOutage)):
            return self.refused == 0
        return 0 < self.remaining == _repetitions(self.fault)

    def is_out_for(self, call: Call) -> bool:
        """Return whether an outage that lasts some seconds has not ended, and affects the caller."""
        assert isinstance(self.fault, ServiceOutage)
        return CLOCK.now() < self.since + self.fault.seconds and not _is_signed_by_operator(call)


class ActiveFaults:
    """The active faults of the account."""

    def __init__(self) -> None:
        self._active: list[_ActiveFault] = []

    def add(self, faults: Iterable[Fault]) -> None:
        """Add faults. Raises ValueError if one is invalid, and then none is added."""
        new_faults = list(faults)
        for fault in new_faults:
            _validate_fault(fault)
        self._active += [_ActiveFault(fault, _repetitions(fault)) for fault in new_faults]

    def add_environment_denials(self, environment: Iterable[tuple[str, str]] = tuple(os.environ.items())) -> None:
        """Add the denials of the variable REHEARSAL_DENY. Raises ValueError if it names an unknown API operation."""
        operations = dict(environment).get(DENY_VARIABLE, "")
        try:
            self.add(parse_denied_operations(operations))
        except ValueError as error:
            raise ValueError(f"{DENY_VARIABLE}={operations}: {error}") from None

    def remove(self, faults: Iterable[Fault]) -> None:
        """Remove one active fault for each fault listed; a fault that is not active is ignored."""
        for fault in faults:
            active = next((active for active in self._active if active.fault == fault), None)
            if active is not None:
                self._active.remove(active)

    def clear(self) -> None:
        """Remove all faults."""
        self._active.clear()

    def dump(self) -> list[dict[str, Any]]:
        """Return the active faults as JSON objects."""
        return [active.fault.model_dump() for active in self._active]

    def without_effect(self) -> list[dict[str, Any]]:
        """Return the active faults that have had no effect as JSON objects."""
        return [active.fault.model_dump() for active in self._active if active.has_no_effect]

    def check_call(self, call: Call, in_json: bool) -> None:
        """Raise ApiError if a fault applies to this call."""
        name = f"{call.service}:{call.operation}"
        for active in self._active:
            fault = active.fault
            has_expired = isinstance(fault, ExpiredCredentials) and CLOCK.now() >= active.since + fault.seconds
            if has_expired and _is_signed_by_operator(call):
                active.refused += 1
                raise _expired(call, in_json)
            if isinstance(fault, Deny) and fault.operation == name:
                active.refused += 1
                raise forbidden(call, in_json, f"User is not authorized to perform: {name} with an explicit deny")
            if isinstance(fault, ServiceOutage) and fault.service == call.service and active.is_out_for(call):
                active.refused += 1
                text = "The service is unavailable. Please retry."
                raise ApiError("503 Service Unavailable", "ServiceUnavailable", text)
            if isinstance(fault, (Throttle, Outage)) and fault.operation == name and active.remaining > 0:
                active.remaining -= 1
                raise (_throttled if isinstance(fault, Throttle) else _server_error)(call, in_json)

    def capacity_limits(self, instance_type: str, zone: str) -> list[Capacity]:
        """Return the limits that apply to launches of this type in this Availability Zone."""
        return [
            active.fault
            for active in self._active
            if isinstance(active.fault, Capacity)
            and active.fault.instance_type in (None, instance_type)
            and active.fault.zone in (None, zone)
        ]

    def quota(self, code: str) -> float | None:
        """Return the lowest value that a fault sets for a quota code, in vCPUs; None without such a fault."""
        faults = (active.fault for active in self._active)
        values = [fault.vcpus for fault in faults if isinstance(fault, Quota) and fault.code == code]
        return float(min(values)) if values else None

    def interface_quota(self) -> float | None:
        """Return the lowest quota on network interfaces that a fault sets; None without such a fault."""
        faults = (active.fault for active in self._active)
        return min((float(fault.interfaces) for fault in faults if isinstance(fault, InterfaceQuota)), default=None)

    def has_fsx_deployment(self, deployment_type: str, zone: str) -> bool:
        """Return whether FSx has this deployment type in the zone."""
        faults = (active.fault for active in self._active if isinstance(active.fault, FsxDeployment))
        return all((fault.type, fault.zone) != (deployment_type, zone) for fault in faults)

    def payments_fail(self) -> bool:
        """Return whether payments of Capacity Blocks fail."""
        return any(isinstance(active.fault, PaymentFailure) for active in self._active)

    def reservations_fail(self, zone: str) -> bool:
        """Return whether reservations in the zone fail."""
        return any(
            isinstance(active.fault, ReservationFailure) and active.fault.zone == zone for active in self._active
        )

    def interruptions(self, instance: Any) -> Iterator[tuple[_ActiveFault, float]]:
        """Yield the faults that interrupt this Spot Instance, each with the Unix time of its notice."""
        for active in self._active:
            fault = active.fault
            if not isinstance(fault, SpotInterruption) or active.remaining == 0:
                continue
            if fault.instance_type in (None, instance.instance_type):
                yield active, max(active.since, float(instance.launched_at) + fault.seconds)

    def reclaims(self, launched_at: float) -> Iterator[tuple[_ActiveFault, float]]:
        """Yield the reclaims of an interruptible reservation, each with the Unix time of its notice.

        `launched_at`: Unix time of the first launch into the reservation.
        """
        for active in self._active:
            if isinstance(active.fault, Reclaim) and active.remaining > 0:
                yield active, max(active.since, launched_at + active.fault.seconds)

    def take_scaling_activity(self) -> bool:
        """Return whether a scaling activity refuses this call of SetDesiredCapacity."""
        for active in self._active:
            if isinstance(active.fault, ScalingActivity) and active.remaining > 0:
                active.remaining -= 1
                return True
        return False

    def omitted_member(self, operation: str, members: Sequence[str]) -> str | None:
        """Return the id that this response of the operation omits from `members`; None without an omission."""
        for active in self._active:
            if isinstance(active.fault, MemberOmission) and members:
                active.responses[operation] += 1
                omission, remainder = divmod(active.responses[operation], active.fault.every)
                if remainder == 0:
                    return members[omission % len(members)]
        return None

    def is_hidden(self, instance: Any) -> bool:
        """Return whether DescribeInstances and DescribeAutoScalingGroups omit the instance because it is new."""
        return _age_seconds(instance) < self._delay_seconds()

    def has_hidden_address(self, instance: Any) -> bool:
        """Return whether DescribeInstances omits the address of the instance because it is new."""
        delay = self._delay_seconds()
        return delay <= _age_seconds(instance) < 2 * delay

    def _delay_seconds(self) -> float:
        faults = (active.fault for active in self._active)
        return max((fault.seconds for fault in faults if isinstance(fault, EventualConsistency)), default=0.0)


ACTIVE_FAULTS = ActiveFaults()


def _age_seconds(instance: Any) -> float:
    return CLOCK.now() - float(instance.launched_at)


def _repetitions(fault: Fault) -> int:
    if isinstance(fault, (Throttle, Outage, ScalingActivity)):
        return fault.times
    if isinstance(fault, Reclaim):
        return 1
    return fault.count if isinstance(fault, SpotInterruption) else 0


def _validate_fault(fault: Fault) -> None:
    """Raise ValueError for a fault that could never take effect."""
    if (
        isinstance(fault, (Capacity, SpotInterruption))
        and fault.instance_type
        and fault.instance_type not in INSTANCE_TYPES
    ):
        raise ValueError(f"AWS has no instance type {fault.instance_type}")
    check_operation(fault)


def forbidden(call: Call, in_json: bool, message: str) -> ApiError:
    """Return the authorization error of the call's service."""
    if call.service == "ec2":
        message = f"You are not authorized to perform this operation. {message}"
        return ApiError("403 Forbidden", "UnauthorizedOperation", message)
    if in_json and call.service != "s3":
        return ApiError("400 Bad Request", "AccessDeniedException", message)
    return ApiError("403 Forbidden", "AccessDenied", message)


def _is_signed_by_operator(call: Call) -> bool:
    """Return whether the call is neither of a role session (ASIA) nor of EC2, which passes a role to an instance."""
    return call.access_key is not None and not call.access_key.startswith(("ASIA", EC2_KEY_PREFIX))


def _expired(call: Call, in_json: bool) -> ApiError:
    if call.service == "ec2":
        return ApiError("400 Bad Request", "RequestExpired", "Request has expired.")
    if call.service == "s3":
        return ApiError("400 Bad Request", "ExpiredToken", "The provided token has expired.")
    message = "The security token included in the request is expired"
    if in_json:
        return ApiError("400 Bad Request", "ExpiredTokenException", message)
    return ApiError("403 Forbidden", "ExpiredToken", message)


def _throttled(call: Call, in_json: bool) -> ApiError:
    if call.service == "ec2":
        return ApiError("503 Service Unavailable", "RequestLimitExceeded", "Request limit exceeded.")
    if call.service == "s3":
        return ApiError("503 Slow Down", "SlowDown", "Please reduce your request rate.")
    return ApiError("400 Bad Request", "ThrottlingException" if in_json else "Throttling", "Rate exceeded")


def _server_error(call: Call, in_json: bool) -> ApiError:
    code = "InternalServerError" if in_json and call.service != "s3" else "InternalError"
    return ApiError("500 Internal Server Error", code, "We encountered an internal error. Please try again.")
