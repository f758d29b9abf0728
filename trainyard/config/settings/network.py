"""Settings of the network: a VPC of the stack, or an existing subnet."""

from ipaddress import IPv4Network
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from trainyard.base import StrictModel
from trainyard.config.field_types import BucketName, SubnetId, VpcId

# Systems Manager user guide, "Improve the security of EC2 instances by using VPC endpoints": Session Manager needs
# these two. They exist with a NAT gateway too, so that operators reach nodes when it fails.
SESSION_SERVICES = ("ssm", "ssmmessages")
# Controller and agents call Auto Scaling; the controller also calls EC2: reservations, network topology. Agents assume
# the role of the job with STS.
NODE_SERVICES = (*SESSION_SERVICES, "autoscaling", "ec2", "sts")


class ExistingNetwork(StrictModel):
    """An existing VPC. The stack changes nothing in it; the preview validates it."""

    vpc_id: VpcId = Field(description="The VPC.")
    subnet_id: SubnetId = Field(
        description="Private subnet of head, workers and file system; it decides the Availability Zone."
    )


class NetworkSettings(StrictModel):
    """The cluster's network."""

    cidr: IPv4Network = Field(
        IPv4Network("10.42.0.0/16"), description="Private IPv4 CIDR block of the stack's VPC, /16 to /24."
    )
    efa: bool | None = Field(None, description="Elastic Fabric Adapter; null: where the instance type supports it.")
    placement_group: bool | None = Field(
        None,
        description="Cluster placement group; null: where the instance type supports it, for On-Demand Instances "
        "without open reservations. A reservation in capacity brings its own.",
    )
    nat_gateway: bool = Field(
        True,
        description="A NAT gateway for internet access; false: no internet access, and an interface endpoint for each "
        "AWS service that nodes call.",
    )
    flow_log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 180, 365] | None = Field(
        30, description="Retention of the VPC's flow logs, days; null: no flow logs."
    )
    readable_buckets: tuple[BucketName, ...] = Field(
        (),
        description="Public S3 buckets in the stack's region that nodes read, such as a mirror of packages. The policy "
        "of the VPC's S3 endpoint allows these, the buckets of the stack and of this file, and those of AWS.",
    )
    existing: ExistingNetwork | None = Field(
        None, description="Existing VPC and subnet to use; null: the stack creates a VPC."
    )

    @field_validator("cidr", mode="before")
    @classmethod
    def _is_string(cls, value: object) -> object:
        if not isinstance(value, str):  # ipaddress accepts integers
            raise PydanticCustomError("ip_v4_network", "not a string")
        return value
