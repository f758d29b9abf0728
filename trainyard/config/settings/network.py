"""The network of a cluster: its own VPC, or a subnet that is there."""

from ipaddress import IPv4Network
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from trainyard.base import Contract
from trainyard.config.settings.names import SubnetId, VpcId, ZoneName

# Session Manager's own (Systems Manager user guide, "Improve the security of EC2 instances by using VPC endpoints"; its
# agent needs ec2messages no more): people reach nodes also where a NAT gateway fails.
SESSION_SERVICES = ("ssm", "ssmmessages")
# The last is what controller and agents call.
NODE_SERVICES = (*SESSION_SERVICES, "autoscaling")


class ExistingNetwork(Contract):
    """A VPC that somebody else keeps. Nothing of it is changed; what nodes need of it is checked first."""

    vpc_id: VpcId = Field(description="The VPC.")
    subnet_id: SubnetId = Field(description="Private subnet of head, workers and file system; it decides the zone.")


class NetworkSettings(Contract):
    """The cluster's network."""

    cidr: IPv4Network = Field(
        IPv4Network("10.42.0.0/16"), description="IPv4 range of the cluster's own VPC, /16 to /24, a private one."
    )
    zone: ZoneName | None = Field(
        None, description="Availability Zone; none: the first that offers the types, or the reservation's or subnet's."
    )
    efa: bool | None = Field(None, description="Elastic Fabric Adapter; none: where the instance type bears it.")
    placement_group: bool | None = Field(
        None, description="Cluster placement group; none: where the instance type can be in one and no block places it."
    )
    nat: bool = Field(
        True,
        description="A NAT gateway as the way out; false: no way out, and an interface endpoint for each AWS service "
        "that nodes call.",
    )
    flow_logs_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 180, 365] | None = Field(
        30, description="Days for which the VPC's flow logs are kept; none: no flow logs."
    )
    existing: ExistingNetwork | None = Field(None, description="A VPC and subnet to be used; none: a VPC of its own.")

    @field_validator("cidr", mode="before")
    @classmethod
    def _written_out(cls, value: object) -> object:
        if not isinstance(value, str):  # a number is an address too
            raise PydanticCustomError("ip_v4_network", "not a range")
        return value
