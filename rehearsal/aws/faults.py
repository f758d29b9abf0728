"""Models of the faults that can be injected into the emulated account by the control endpoint `faults`."""

import re
from typing import Annotated, Literal

import botocore.session
from botocore.exceptions import UnknownServiceError
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from rehearsal.aws.ec2.reference import load_reference
from trainyard.base import StrictModel


def _validate_operation(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+:[A-Z]\w+", value):
        raise ValueError("must be a service as in IAM and one of its API operations, such as fsx:CreateFileSystem")
    return value


Operation = Annotated[
    str,
    AfterValidator(_validate_operation),
    Field(description="Service as in IAM and API operation, such as fsx:CreateFileSystem."),
]


class Capacity(StrictModel):
    """A limit on EC2 capacity: launches and reservations beyond it fail with InsufficientInstanceCapacity."""

    kind: Literal["capacity"] = "capacity"
    limit: int = Field(ge=0, description="Instances that can run at once.")
    instance_type: str | None = Field(
        default=None, description="Instance type that the limit applies to; none: all types together."
    )
    zone: str | None = Field(default=None, description="Availability Zone of the limit; none: the whole region.")
    cluster_placement: bool = Field(
        default=False, description="Whether the limit applies to each cluster placement group on its own."
    )


class Throttle(StrictModel):
    """Throttling: the next calls of an operation fail with the service's rate-limit error."""

    kind: Literal["throttle"] = "throttle"
    operation: Operation
    times: int = Field(ge=1, description="Calls that fail.")


class Outage(StrictModel):
    """A server error: the next calls of an operation fail with HTTP 500."""

    kind: Literal["outage"] = "outage"
    operation: Operation
    times: int = Field(ge=1, description="Calls that fail.")


class ServiceOutage(StrictModel):
    """An unavailable service: for some seconds all calls that nodes make to it fail with HTTP 503.

    Code ServiceUnavailable: S3 API reference, "Error responses", and the common errors of the EC2 and Auto Scaling API
    references. The operator's calls succeed, because with them the rehearsal observes the run.
    """

    kind: Literal["service-outage"] = "service-outage"
    service: str = Field(description="Service as in IAM, such as s3.")
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds from the injection to the end.")


class ScalingActivity(StrictModel):
    """A scaling activity: the next calls of SetDesiredCapacity fail with ScalingActivityInProgress.

    Auto Scaling API reference, errors of SetDesiredCapacity. The reference does not name the condition.
    """

    kind: Literal["scaling-activity"] = "scaling-activity"
    times: int = Field(ge=1, description="Calls that fail.")


class EventualConsistency(StrictModel):
    """Eventual consistency: a new instance is missing from the responses of EC2 and Auto Scaling, then has no address.

    EC2 developer guide, "Eventual consistency in the Amazon EC2 API". That DescribeAutoScalingGroups omits an instance
    which LaunchInstances has returned is an assumption.
    """

    kind: Literal["eventual-consistency"] = "eventual-consistency"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Length of each of the two phases, from the launch.")


class Deny(StrictModel):
    """A denied operation: every call fails with an authorization error."""

    kind: Literal["deny"] = "deny"
    operation: Operation


def _quota_code(code: str) -> str:
    codes = sorted(quota.code for quota in load_reference().quotas)
    if code not in codes:
        raise ValueError(f"not an EC2 vCPU quota; use one of {', '.join(codes)}")
    return code


class Quota(StrictModel):
    """An EC2 vCPU quota: launches above it fail with VcpuLimitExceeded (On-Demand) or MaxSpotInstanceCountExceeded."""

    kind: Literal["quota"] = "quota"
    code: Annotated[str, AfterValidator(_quota_code)] = Field(description="Quota code, such as L-417A185B.")
    vcpus: int = Field(ge=0, description="vCPUs that can run at once.")


class InterfaceQuota(StrictModel):
    """The quota on network interfaces: launches and interfaces above it fail with NetworkInterfaceLimitExceeded."""

    kind: Literal["interface-quota"] = "interface-quota"
    interfaces: int = Field(ge=0, description="Network interfaces that a region can have.")


class SpotInterruption(StrictModel):
    """Spot interruption: EC2 terminates Spot Instances two minutes after a notice in their metadata."""

    kind: Literal["spot-interruption"] = "spot-interruption"
    seconds: float = Field(ge=0, allow_inf_nan=False, description="Seconds from an instance's launch to its notice.")
    count: int = Field(default=1, ge=1, description="Instances that are interrupted.")
    instance_type: str | None = Field(default=None, description="Instance type that is interrupted; none: any.")


class Reclaim(StrictModel):
    """Reclaim: the owner of an interruptible Capacity Reservation reclaims instances, with two minutes' notice."""

    kind: Literal["reclaim"] = "reclaim"
    seconds: float = Field(
        ge=0, allow_inf_nan=False, description="Seconds from the first launch into the reservation to the notice."
    )
    count: int = Field(default=1, ge=1, description="Running instances that are reclaimed.")
    return_seconds: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Seconds from the notice until the owner allocates them again; none: never.",
    )


class MemberOmission(StrictModel):
    """Incomplete responses: every n-th one omits a group member (Auto Scaling) or an instance (EC2), each time another.

    EC2 documents eventual consistency for new and changed resources (developer guide, "Eventual consistency in the
    Amazon EC2 API"). That a resource of any age is omitted is an assumption: it is the case of a single wrong
    observation, which skypilot issue 10162 shows to restart healthy jobs.
    """

    kind: Literal["member-omission"] = "member-omission"
    every: int = Field(
        ge=2,
        description="Number of responses of DescribeAutoScalingGroups, and of DescribeInstances, per incomplete one.",
    )


class FsxDeployment(StrictModel):
    """An unavailable deployment type: FSx for Lustre refuses it in one Availability Zone.

    FSx for Lustre user guide, "Deployment options": a type is available in some zones only. awsome-distributed-ai issue
    1097 shows the refusal of another FSx type; that its code is BadRequest is an assumption.
    """

    kind: Literal["fsx-deployment"] = "fsx-deployment"
    zone: str = Field(description="Availability Zone, such as us-east-1e.")
    type: Literal["SCRATCH_1", "SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2"] = Field(description="Deployment type.")


class ExpiredCredentials(StrictModel):
    """Expired credentials of the operator: all calls with keys fail, except those of node roles and of EC2 itself.

    Error codes: eks-rolling-update issue 103 (EC2), terraform-provider-aws issue 37647 (JSON protocols), AWS knowledge
    center "The security token included in the request is expired" (query protocol), S3 API reference "Error responses".
    """

    kind: Literal["expired-credentials"] = "expired-credentials"
    seconds: float = Field(ge=0, allow_inf_nan=False, description="Seconds from the injection to the expiration.")


class CapacityBlockStart(StrictModel):
    """A Capacity Block that has not started: launches into it fail before its start."""

    kind: Literal["capacity-block-start"] = "capacity-block-start"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds from the start of the rehearsal.")


class PaymentFailure(StrictModel):
    """A failed payment: Capacity Blocks and extensions whose payment is pending are not paid.

    API reference, CapacityReservation, State `payment-failed`: AWS releases the block.
    """

    kind: Literal["payment-failure"] = "payment-failure"


class ReservationFailure(StrictModel):
    """On-Demand Capacity Reservations in the zone are pending at first, and then fail.

    API reference, CapacityReservation, State `failed`: for example because of capacity constraints.
    """

    kind: Literal["reservation-failure"] = "reservation-failure"
    zone: str = Field(description="Availability Zone.")


Fault = (
    Capacity
    | Throttle
    | Outage
    | ServiceOutage
    | ScalingActivity
    | EventualConsistency
    | Deny
    | Quota
    | InterfaceQuota
    | SpotInterruption
    | Reclaim
    | MemberOmission
    | FsxDeployment
    | ExpiredCredentials
    | CapacityBlockStart
    | PaymentFailure
    | ReservationFailure
)
FAULTS: TypeAdapter[list[Fault]] = TypeAdapter(list[Annotated[Fault, Field(discriminator="kind")]])
DENY_VARIABLE = "REHEARSAL_DENY"
_BOTOCORE_NAMES = {
    "tag": "resourcegroupstaggingapi",
    "cloudcontrolapi": "cloudcontrol",
    "servicequotas": "service-quotas",
}  # service as in IAM -> botocore's name


def check_operation(fault: StrictModel) -> None:
    """Raise ValueError if the fault names a service or an API operation that AWS does not have."""
    if isinstance(fault, (Deny, Throttle, Outage, ServiceOutage)):
        name = fault.service if isinstance(fault, ServiceOutage) else fault.operation
        service, _, operation = name.partition(":")
        try:
            service_model = botocore.session.get_session().get_service_model(_BOTOCORE_NAMES.get(service, service))
        except UnknownServiceError:
            raise ValueError(f"AWS has no service {service} (of {name})") from None
        if operation and operation not in service_model.operation_names:
            raise ValueError(f"AWS has no API operation {name}")


def parse_denied_operations(text: str) -> list[Fault]:
    """Return the faults for a comma-separated list of operations, as in REHEARSAL_DENY. Raises ValueError."""
    faults: list[Fault] = []
    for name in filter(None, map(str.strip, text.split(","))):
        try:
            faults.append(Deny(operation=name))
        except ValidationError:
            raise ValueError(f"{name} is not an operation such as fsx:CreateFileSystem") from None
        check_operation(faults[-1])
    return faults
