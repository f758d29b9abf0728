"""Faults that the emulated account shows on demand, as models: what the control page `faults` takes."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from contract.base import Contract

Operation = Annotated[
    str,
    Field(pattern=r"^[a-z0-9-]+:[A-Z]\w+$", description="Service as in IAM and API operation: fsx:CreateFileSystem."),
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


class Invisible(Contract):
    """EC2's eventual consistency: an instance is missing from DescribeInstances, then shown without its address."""

    kind: Literal["invisible"] = "invisible"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Length of each of the two, from the launch on.")


class Deny(Contract):
    """An operation is refused to everyone."""

    kind: Literal["deny"] = "deny"
    operation: Operation


Fault = Capacity | Throttle | Invisible | Deny
FAULTS: TypeAdapter[list[Fault]] = TypeAdapter(list[Annotated[Fault, Field(discriminator="kind")]])
DENY_VARIABLE = "REHEARSAL_DENY"
