"""What stands in an account before a stack comes, as models: what the control page `given` takes."""

from typing import Literal

from pydantic import Field

from trainyard.base import Contract

SERVICES = ("s3", "ssm", "ssmmessages")


class GivenReservation(Contract):
    """A capacity reservation, or a Capacity Block."""

    id: str = Field(pattern="^cr-[0-9a-f]{17}$", description="Its id.")
    instance_type: str = Field(description="EC2 instance type.")
    zone: str = Field(description="Availability zone.")
    count: int = Field(gt=0, description="Instances that it holds.")
    block: bool = Field(default=False, description="Whether it is a Capacity Block.")
    criteria: Literal["open", "targeted"] = Field(
        default="targeted", description="Which launches it takes; a block takes targeted ones."
    )
    start: float | None = Field(default=None, description="Unix time at which it begins; none: it has begun.")
    end: float | None = Field(default=None, description="Unix time at which it ends; none: when it is cancelled.")


class GivenSubnet(Contract):
    """A private subnet: its way out is a NAT gateway."""

    id: str = Field(pattern="^subnet-[0-9a-f]{8,17}$", description="Its id.")
    zone: str = Field(description="Availability zone.")


class GivenNetwork(Contract):
    """A VPC with private subnets, a public one with a NAT gateway, and endpoints of services."""

    id: str = Field(pattern="^vpc-[0-9a-f]{8,17}$", description="Id of the VPC.")
    cidr: str = Field(default="10.0.0.0/16", description="Its addresses, at least 16 subnets of 16.")
    subnets: tuple[GivenSubnet, ...] = Field(min_length=1, max_length=14, description="Its private subnets.")
    services: tuple[str, ...] = Field(default=SERVICES, description="Services that it has an endpoint of.")


class GivenKey(Contract):
    """A customer managed KMS key."""

    id: str = Field(pattern="^[0-9a-f-]{36}$", description="Its key id.")


class GivenBucket(Contract):
    """An S3 bucket."""

    name: str = Field(description="Its name.")
    versioned: bool = Field(default=True, description="Whether it keeps versions.")


class Given(Contract):
    """All of it, in one region."""

    region: str = Field(description="Region of the things.")
    reservations: tuple[GivenReservation, ...] = Field(default=(), description="Capacity reservations.")
    networks: tuple[GivenNetwork, ...] = Field(default=(), description="VPCs.")
    keys: tuple[GivenKey, ...] = Field(default=(), description="KMS keys.")
    buckets: tuple[GivenBucket, ...] = Field(default=(), description="S3 buckets.")
