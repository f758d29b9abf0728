"""The faults that are on, and what each does to a call."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.faults import (
    DENY_VARIABLE,
    Capacity,
    Deny,
    Fault,
    Invisible,
    Outage,
    Quota,
    SpotInterruption,
    Throttle,
    check_operation,
    denied,
)
from rehearsal.aws.operations import Call

_RUNNING = {"pending", "running"}


@dataclass
class Refusal(Exception):
    """A call's answer with this HTTP status and error code, in the shape of its service."""

    status: str
    code: str
    message: str


class InsufficientCapacity(EC2ClientError):
    """EC2 has no more instances of this type."""

    def __init__(self, zone: str, instance_type: str) -> None:
        super().__init__(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested "
            f"({zone}). Our system will be working on provisioning additional capacity.",
        )


@dataclass
class _On:
    """A fault that is on. `left`: calls still to refuse, or instances still to interrupt."""

    fault: Fault
    left: int = 0
    since: float = field(default_factory=CLOCK.now)


class Injected:
    """The faults that are on."""

    def __init__(self) -> None:
        self._on: list[_On] = []

    def add(self, faults: Iterable[Fault]) -> None:
        """Put these on beside those that are. Raises ValueError, and then none was put on."""
        wanted = list(faults)
        for fault in wanted:
            _check(fault)
        self._on += [_On(fault, _times(fault)) for fault in wanted]

    def add_denials(self, environment: Iterable[tuple[str, str]] = tuple(os.environ.items())) -> None:
        """Those that the environment asks for from the start. Raises ValueError on what is no API operation."""
        wanted = dict(environment).get(DENY_VARIABLE, "")
        try:
            self.add(denied(wanted))
        except ValueError as error:
            raise ValueError(f"{DENY_VARIABLE}={wanted}: {error}") from None

    def remove(self, faults: Iterable[Fault]) -> None:
        """End these, each one as often as it is named; one that is not on is no mistake."""
        for fault in faults:
            found = next((each for each in self._on if each.fault == fault), None)
            if found is not None:
                self._on.remove(found)

    def clear(self) -> None:
        self._on.clear()

    def told(self) -> list[dict[str, Any]]:
        return [each.fault.model_dump() for each in self._on]

    def check_call(self, call: Call, in_json: bool) -> None:
        """Raises Refusal when a fault holds for this call."""
        name = f"{call.service}:{call.operation}"
        for each in self._on:
            if isinstance(each.fault, Deny) and each.fault.operation == name:
                raise forbidden(call, in_json, f"User is not authorized to perform: {name} with an explicit deny")
            if isinstance(each.fault, (Throttle, Outage)) and each.fault.operation == name and each.left > 0:
                each.left -= 1
                raise (_throttled if isinstance(each.fault, Throttle) else _broken)(call, in_json)

    def room(self, instance_type: str, count: int) -> int:
        """How many of `count` instances of this type can be launched."""
        limits = [each.fault for each in self._on if isinstance(each.fault, Capacity)]
        if not limits:
            return count
        types = [each.instance_type for each in _running()]
        for fault in limits:
            if fault.instance_type in (None, instance_type):
                held = types.count(instance_type) if fault.instance_type else len(types)
                count = min(count, max(0, fault.limit - held))
        return count

    def quota(self, code: str) -> float | None:
        """The quota of this code, where one is given."""
        given = [each.fault.vcpus for each in self._on if isinstance(each.fault, Quota) and each.fault.code == code]
        return float(min(given)) if given else None

    def interruptions(self, instance: Any) -> Iterator[tuple[_On, float]]:
        """The faults that interrupt this Spot Instance, each with the time of the notice."""
        for each in self._on:
            fault = each.fault
            if not isinstance(fault, SpotInterruption) or each.left == 0:
                continue
            if fault.instance_type in (None, instance.instance_type):
                yield each, max(each.since, float(instance.launched_at) + fault.seconds)

    def unseen(self, instance: Any) -> bool:
        """Whether DescribeInstances does not show it yet."""
        return _age(instance) < self._delay()

    def without_address(self, instance: Any) -> bool:
        """Whether DescribeInstances shows it, but not its address yet."""
        delay = self._delay()
        return delay <= _age(instance) < 2 * delay

    def _delay(self) -> float:
        return max((each.fault.seconds for each in self._on if isinstance(each.fault, Invisible)), default=0.0)


INJECTED = Injected()


def _age(instance: Any) -> float:
    return CLOCK.now() - float(instance.launched_at)


def _running() -> Iterator[Any]:
    backends: Any = ec2_backends
    for _, _, backend in backends.iter_backends():
        yield from (
            each
            for each in backend.all_instances()
            if each.state in _RUNNING
            and each.capacity_reservation_id is None  # what is reserved is there whatever runs short
        )


def _times(fault: Fault) -> int:
    if isinstance(fault, (Throttle, Outage)):
        return fault.times
    return fault.count if isinstance(fault, SpotInterruption) else 0


def _check(fault: Fault) -> None:
    """Refuse a fault that could never show. Raises ValueError."""
    if (
        isinstance(fault, (Capacity, SpotInterruption))
        and fault.instance_type
        and fault.instance_type not in INSTANCE_TYPES
    ):
        raise ValueError(f"no instance type {fault.instance_type}")
    check_operation(fault)


def forbidden(call: Call, in_json: bool, message: str) -> Refusal:
    """The answer to a caller who may not."""
    if call.service == "ec2":
        message = f"You are not authorized to perform this operation. {message}"
        return Refusal("403 Forbidden", "UnauthorizedOperation", message)
    if in_json and call.service != "s3":
        return Refusal("400 Bad Request", "AccessDeniedException", message)
    return Refusal("403 Forbidden", "AccessDenied", message)


def _throttled(call: Call, in_json: bool) -> Refusal:
    if call.service == "ec2":
        return Refusal("503 Service Unavailable", "RequestLimitExceeded", "Request limit exceeded.")
    if call.service == "s3":
        return Refusal("503 Slow Down", "SlowDown", "Please reduce your request rate.")
    return Refusal("400 Bad Request", "ThrottlingException" if in_json else "Throttling", "Rate exceeded")


def _broken(call: Call, in_json: bool) -> Refusal:
    code = "InternalServerError" if in_json and call.service != "s3" else "InternalError"
    return Refusal("500 Internal Server Error", code, "We encountered an internal error. Please try again.")
