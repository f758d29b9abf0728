"""Models of the resources that exist in an account before a stack is deployed: body of the control endpoint `seed`."""

from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel

SERVICES = ("s3", "ssm", "ssmmessages")


class SeedReservation(StrictModel):
    """A capacity reservation or a Capacity Block."""

    id: str = Field(pattern="^cr-[0-9a-f]{17}$", description="Reservation id.")
    instance_type: str = Field(description="EC2 instance type.")
    zone: str = Field(description="Availability zone.")
    count: int = Field(gt=0, description="Instances that it reserves.")
    block: bool = Field(default=False, description="Whether it is a Capacity Block.")
    interruptible: bool = Field(
        default=False, description="Whether it is interruptible: then the seed also has its source, without capacity."
    )
    owner: str | None = Field(
        default=None,
        pattern="^[0-9]{12}$",
        description="Account that owns it, and its source, and has shared it with AWS RAM; none: the emulated account.",
    )
    paid: bool = Field(
        default=True, description="Whether a Capacity Block is paid; otherwise its payment is pending, see Timing."
    )
    ultraserver_type: str | None = Field(
        default=None, description="UltraServer type of a Capacity Block, such as u-p6e-gb200x36; none: instances."
    )
    criteria: Literal["open", "targeted"] = Field(
        default="targeted", description="Instance match criteria. A Capacity Block is always targeted."
    )
    start: float | None = Field(default=None, description="Unix time of the start, seconds; none: it has started.")
    end: float | None = Field(default=None, description="Unix time of the end, seconds; none: until cancelled.")


class SeedSubnet(StrictModel):
    """A private subnet, whose default route is a NAT gateway."""

    id: str = Field(pattern="^subnet-[0-9a-f]{8,17}$", description="Subnet id.")
    zone: str = Field(description="Availability zone.")


class SeedNetwork(StrictModel):
    """A VPC with private subnets, a public one with a NAT gateway, and VPC endpoints."""

    id: str = Field(pattern="^vpc-[0-9a-f]{8,17}$", description="VPC id.")
    cidr: str = Field(default="10.0.0.0/16", description="CIDR block of the VPC, /16 to /24; it is divided in 16.")
    subnets: tuple[SeedSubnet, ...] = Field(min_length=1, max_length=14, description="Private subnets.")
    services: tuple[str, ...] = Field(default=SERVICES, description="Services with a VPC endpoint.")


class SeedKey(StrictModel):
    """A customer managed KMS key."""

    id: str = Field(pattern="^[0-9a-f-]{36}$", description="Key id.")
    region: str | None = Field(default=None, description="Its region; none: that of the other resources.")


class SeedBucket(StrictModel):
    """An S3 bucket."""

    name: str = Field(description="Bucket name.")
    region: str | None = Field(default=None, description="Its region; none: that of the other resources.")
    versioned: bool = Field(default=True, description="Whether versioning is enabled.")
    receives_access_logs: bool = Field(
        default=False, description="Whether its policy allows S3 to write server access logs."
    )


class AccountSeed(StrictModel):
    """The resources to create, in one region, and the account's quotas."""

    region: str = Field(description="Region of the resources.")
    reservations: tuple[SeedReservation, ...] = Field(default=(), description="Capacity reservations.")
    networks: tuple[SeedNetwork, ...] = Field(default=(), description="VPCs.")
    keys: tuple[SeedKey, ...] = Field(default=(), description="KMS keys.")
    buckets: tuple[SeedBucket, ...] = Field(default=(), description="S3 buckets.")
    increased_quota_codes: tuple[str, ...] | None = Field(
        default=None, description="Codes of the vCPU quotas that were increased; all others are 0. None: all were."
    )
