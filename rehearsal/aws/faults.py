"""Faults that the emulated account shows on demand, as models: what the control page `faults` takes."""

from typing import Annotated, Literal

import botocore.session
from botocore.exceptions import UnknownServiceError
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from trainyard.base import Contract
from trainyard.config.quotas import QUOTAS
from trainyard.config.validation_messages import spelled

_WORDS = "a service as in IAM and one of its API operations, such as fsx:CreateFileSystem"
Operation = Annotated[
    str,
    AfterValidator(spelled(r"[a-z0-9-]+:[A-Z]\w+", _WORDS)),
    Field(description="Such as fsx:CreateFileSystem."),
]


class Capacity(Contract):
    """Capacity runs out: launches beyond it answer InsufficientInstanceCapacity."""

    kind: Literal["capacity"] = "capacity"
    limit: int = Field(ge=0, description="Instances that may run at once.")
    instance_type: str | None = Field(default=None, description="The type that it holds for; none: all together.")


class Throttle(Contract):
    """The next calls of an operation are refused as too many."""

    kind: Literal["throttle"] = "throttle"
    operation: Operation
    times: int = Field(ge=1, description="Calls that are refused.")


class Outage(Contract):
    """The next calls of an operation fail inside AWS: HTTP 500."""

    kind: Literal["outage"] = "outage"
    operation: Operation
    times: int = Field(ge=1, description="Calls that fail.")


class Invisible(Contract):
    """EC2's eventual consistency: an instance is missing from DescribeInstances, then shown without its address."""

    kind: Literal["invisible"] = "invisible"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Length of each of the two, from the launch on.")


class Deny(Contract):
    """An operation is refused to everyone."""

    kind: Literal["deny"] = "deny"
    operation: Operation


def _quota_code(code: str) -> str:
    if all(code != quota.code for quota in QUOTAS):
        raise ValueError(f"no quota of vCPUs; they are {', '.join(quota.code for quota in QUOTAS)}")
    return code


class Quota(Contract):
    """A quota of vCPUs of EC2: launches above it answer VcpuLimitExceeded, Spot ones MaxSpotInstanceCountExceeded."""

    kind: Literal["quota"] = "quota"
    code: Annotated[str, AfterValidator(_quota_code)] = Field(description="Code of the quota, such as L-417A185B.")
    vcpus: int = Field(ge=0, description="vCPUs that may run at once.")


class SpotInterruption(Contract):
    """EC2 takes Spot Instances back: two minutes after a notice in their metadata."""

    kind: Literal["spot-interruption"] = "spot-interruption"
    seconds: float = Field(ge=0, allow_inf_nan=False, description="From an instance's launch to its notice.")
    count: int = Field(default=1, ge=1, description="Instances that are taken back.")
    instance_type: str | None = Field(default=None, description="The type that it holds for; none: any.")


Fault = Capacity | Throttle | Outage | Invisible | Deny | Quota | SpotInterruption
FAULTS: TypeAdapter[list[Fault]] = TypeAdapter(list[Annotated[Fault, Field(discriminator="kind")]])
DENY_VARIABLE = "REHEARSAL_DENY"
_BOTOCORE_NAMES = {
    "tag": "resourcegroupstaggingapi",
    "cloudcontrolapi": "cloudcontrol",
    "servicequotas": "service-quotas",
}  # service as in IAM -> botocore's name


def check_operation(fault: Fault) -> None:
    """Refuse a fault of an operation that AWS does not have. Raises ValueError."""
    if isinstance(fault, (Deny, Throttle, Outage)):
        service, _, operation = fault.operation.partition(":")
        try:
            known = botocore.session.get_session().get_service_model(_BOTOCORE_NAMES.get(service, service))
        except UnknownServiceError:
            raise ValueError(f"no service {service} (of {fault.operation})") from None
        if operation not in known.operation_names:
            raise ValueError(f"no API operation {fault.operation}")


def denied(text: str) -> list[Fault]:
    """What the environment variable asks for: operations, with commas between. Raises ValueError."""
    faults: list[Fault] = []
    for each in filter(None, map(str.strip, text.split(","))):
        try:
            faults.append(Deny(operation=each))
        except ValidationError:
            raise ValueError(f"{each} is no operation such as fsx:CreateFileSystem") from None
        check_operation(faults[-1])
    return faults
