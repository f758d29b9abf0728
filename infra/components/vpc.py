"""The stack's VPC: nodes in private subnets with or without a NAT gateway."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.scope import Scope
from trainyard.config.validators.network import SUBNETS

_INTERNET = "0.0.0.0/0"


@dataclass(frozen=True, kw_only=True)
class VpcArgs:
    """Arguments of Vpc.

    `worker_zones`: Availability Zones in which the workers may be; the first is that of the head. `pin_zone` keeps the
    zone of the head's existing subnets when a later lookup would select a different zone.
    """

    scope: Scope
    cidr: IPv4Network
    worker_zones: Sequence[str]
    pin_zone: bool
    nat_gateway: bool


@dataclass(frozen=True, kw_only=True)
class WorkerSubnet:
    """A subnet in which the launch may start workers."""

    id: pulumi.Input[str]
    zone: pulumi.Input[str]


class Vpc(pulumi.ComponentResource):
    """A VPC with a private and a public subnet in the head's zone, and a private one for workers in each other zone.

    Its default security group has no rules.

    Subnets cost nothing. The head's subnets keep their CIDR blocks when zones are added or removed.
    """

    vpc_id: pulumi.Output[str]
    private_subnet_id: pulumi.Output[str]
    worker_subnets: Sequence[WorkerSubnet]
    private_routes_id: pulumi.Output[str]
    nat_addresses: Sequence[pulumi.Output[str]]

    def __init__(self, name: str, args: VpcArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Vpc", name, None, opts)
        self._name_prefix, self._args = name, args
        private_cidr, public_cidr, *zone_cidrs = args.cidr.subnets(SUBNETS.bit_length() - 1)
        self._vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=str(args.cidr),
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=args.scope.tags("vpc"),
            opts=child_options(self, "vpc"),
        )
        # An interface without a security group gets the default one, which EC2 creates with rules for all egress.
        # The provider removes every rule that is not an argument here.
        aws.ec2.DefaultSecurityGroup(
            f"{name}-default",
            vpc_id=self._vpc.id,
            tags=args.scope.tags("default-group"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        subnet, routes = self._subnet("private", private_cidr)
        self.nat_addresses = [self._add_nat_gateway(routes, public_cidr)] if args.nat_gateway else []
        self.worker_subnets = [WorkerSubnet(id=subnet.id, zone=subnet.availability_zone)]
        for zone in args.worker_zones[1:]:
            other = self._zone_subnet(zone, zone_cidrs["abcdef".index(zone[-1])], routes)
            self.worker_subnets.append(WorkerSubnet(id=other.id, zone=zone))
        self.vpc_id, self.private_subnet_id, self.private_routes_id = self._vpc.id, subnet.id, routes.id
        self.register_outputs({"vpc_id": self.vpc_id, "private_subnet_id": self.private_subnet_id})

    def _subnet(self, role: str, cidr: IPv4Network) -> tuple[aws.ec2.Subnet, aws.ec2.RouteTable]:
        """Create a subnet with its route table."""
        args = self._args
        name = f"{self._name_prefix}-{role}"
        subnet = aws.ec2.Subnet(
            name,
            vpc_id=self._vpc.id,
            cidr_block=str(cidr),
            availability_zone=args.scope.zone,
            map_public_ip_on_launch=False,
            tags=args.scope.tags(f"{role}-subnet"),
            # A replacement in another zone has the same CIDR block, so the old subnet is deleted first.
            opts=child_options(
                self,
                role,
                delete_before_replace=True,
                ignore_changes=["availabilityZone"] if args.pin_zone else [],
            ),
        )
        routes = aws.ec2.RouteTable(
            name, vpc_id=self._vpc.id, tags=args.scope.tags(f"{role}-routes"), opts=child_options(self, role)
        )
        aws.ec2.RouteTableAssociation(
            name, subnet_id=subnet.id, route_table_id=routes.id, opts=child_options(self, role)
        )
        return subnet, routes

    def _zone_subnet(self, zone: str, cidr: IPv4Network, routes: aws.ec2.RouteTable) -> aws.ec2.Subnet:
        """Create a private subnet for workers in another zone than the head's, with the routes of the head's."""
        role = f"private-{zone[-1]}"
        name = f"{self._name_prefix}-{role}"
        subnet = aws.ec2.Subnet(
            name,
            vpc_id=self._vpc.id,
            cidr_block=str(cidr),
            availability_zone=zone,
            map_public_ip_on_launch=False,
            tags=self._args.scope.tags(f"{role}-subnet"),
            opts=child_options(self, role, delete_before_replace=True),
        )
        aws.ec2.RouteTableAssociation(
            name, subnet_id=subnet.id, route_table_id=routes.id, opts=child_options(self, role)
        )
        return subnet

    def _add_nat_gateway(self, private_routes: aws.ec2.RouteTable, cidr: IPv4Network) -> pulumi.Output[str]:
        """Create the NAT gateway of the private subnets and return its public address."""
        tags, name = self._args.scope.tags, self._name_prefix
        subnet, routes = self._subnet("public", cidr)
        gateway = aws.ec2.InternetGateway(
            f"{name}-internet",
            vpc_id=self._vpc.id,
            tags=tags("internet-gateway"),
            opts=child_options(self, "internet"),
        )
        address = aws.ec2.Eip(
            f"{name}-nat-address",
            domain="vpc",
            tags=tags("nat-address"),
            opts=child_options(self, "nat-address", depends_on=[gateway]),
        )
        nat = aws.ec2.NatGateway(
            f"{name}-nat",
            allocation_id=address.allocation_id,
            subnet_id=subnet.id,
            connectivity_type="public",
            tags=tags("nat-gateway"),
            opts=child_options(self, "nat", depends_on=[gateway]),
        )
        aws.ec2.Route(
            f"{name}-public",
            route_table_id=routes.id,
            destination_cidr_block=_INTERNET,
            gateway_id=gateway.id,
            opts=child_options(self, "public"),
        )
        aws.ec2.Route(
            f"{name}-private",
            route_table_id=private_routes.id,
            destination_cidr_block=_INTERNET,
            nat_gateway_id=nat.id,
            opts=child_options(self, "private"),
        )
        return address.public_ip
