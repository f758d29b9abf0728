"""The cluster's own VPC: nodes in a private subnet, which reach the world through a NAT gateway, or not at all."""

from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi
import pulumi_aws as aws

from infra.scope import Scope

_WORLD = "0.0.0.0/0"


@dataclass(frozen=True, kw_only=True)
class VpcArgs:
    """`pin_zone`: the zone was our choice, not the user's, and shall stay if a later look-up would choose another.

    `nat`: whether there is a way out.
    """

    scope: Scope
    cidr: IPv4Network
    pin_zone: bool
    nat: bool


class Vpc(pulumi.ComponentResource):
    """One VPC in one zone: nodes, their file system and their placement group can't span zones anyway."""

    vpc_id: pulumi.Output[str]
    private_subnet_id: pulumi.Output[str]
    private_routes_id: pulumi.Output[str]

    def __init__(self, name: str, args: VpcArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Vpc", name, None, opts)
        self._args = args
        self._own = pulumi.ResourceOptions(parent=self)
        # Half of the range for nodes (trainyard.config.validators counts on it), the other for the NAT gateway.
        private_range, public_range = args.cidr.subnets(1)
        self._vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=str(args.cidr),
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=args.scope.tags("vpc"),
            opts=self._own,
        )
        subnet, routes = self._subnet("private", private_range)
        if args.nat:
            self._way_out(routes, public_range)
        self.vpc_id, self.private_subnet_id, self.private_routes_id = self._vpc.id, subnet.id, routes.id
        self.register_outputs({"vpc_id": self.vpc_id, "private_subnet_id": self.private_subnet_id})

    def _subnet(self, role: str, cidr: IPv4Network) -> tuple[aws.ec2.Subnet, aws.ec2.RouteTable]:
        """A subnet with routes of its own."""
        args = self._args
        subnet = aws.ec2.Subnet(
            role,
            vpc_id=self._vpc.id,
            cidr_block=str(cidr),
            availability_zone=args.scope.zone,
            map_public_ip_on_launch=False,
            tags=args.scope.tags(f"{role}-subnet"),
            # In another zone it has the same range, which the VPC has room for once.
            opts=self._with(delete_before_replace=True, ignore_changes=["availabilityZone"] if args.pin_zone else []),
        )
        routes = aws.ec2.RouteTable(role, vpc_id=self._vpc.id, tags=args.scope.tags(f"{role}-routes"), opts=self._own)
        aws.ec2.RouteTableAssociation(role, subnet_id=subnet.id, route_table_id=routes.id, opts=self._own)
        return subnet, routes

    def _way_out(self, private_routes: aws.ec2.RouteTable, cidr: IPv4Network) -> None:
        tags = self._args.scope.tags
        subnet, routes = self._subnet("public", cidr)
        gateway = aws.ec2.InternetGateway(
            "internet", vpc_id=self._vpc.id, tags=tags("internet-gateway"), opts=self._own
        )
        after_gateway = self._with(depends_on=[gateway])
        address = aws.ec2.Eip("nat-address", domain="vpc", tags=tags("nat-address"), opts=after_gateway)
        nat = aws.ec2.NatGateway(
            "nat",
            allocation_id=address.allocation_id,
            subnet_id=subnet.id,
            connectivity_type="public",
            tags=tags("nat-gateway"),
            opts=after_gateway,
        )
        aws.ec2.Route(
            "public", route_table_id=routes.id, destination_cidr_block=_WORLD, gateway_id=gateway.id, opts=self._own
        )
        aws.ec2.Route(
            "private",
            route_table_id=private_routes.id,
            destination_cidr_block=_WORLD,
            nat_gateway_id=nat.id,
            opts=self._own,
        )

    def _with(self, **options: object) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions.merge(self._own, pulumi.ResourceOptions(**options))  # type: ignore[arg-type]
