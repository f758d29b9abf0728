"""The VPC: nodes in a private subnet, which reach the world through a NAT gateway and S3 through a gateway endpoint."""

from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi
import pulumi_aws as aws

from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """`pin_zone`: the zone was our choice, not the user's, and shall stay if a later look-up would choose another."""

    scope: Scope
    cidr: IPv4Network
    pin_zone: bool


class Network(pulumi.ComponentResource):
    """One VPC in one zone: nodes, their file system and their placement group can't span zones anyway."""

    vpc_id: pulumi.Output[str]
    private_subnet_id: pulumi.Output[str]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Network", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        tags = args.scope.tags
        # Half of the range for nodes (contract.rules counts on it), the other for the NAT gateway.
        private_range, public_range = args.cidr.subnets(1)

        vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=str(args.cidr),
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=tags("vpc"),
            opts=own,
        )
        in_zone = pulumi.ResourceOptions.merge(
            own, pulumi.ResourceOptions(ignore_changes=["availabilityZone"] if args.pin_zone else [])
        )
        subnets = {
            role: aws.ec2.Subnet(
                role,
                vpc_id=vpc.id,
                cidr_block=str(cidr),
                availability_zone=args.scope.zone,
                map_public_ip_on_launch=False,
                tags=tags(f"{role}-subnet"),
                opts=in_zone,
            )
            for role, cidr in (("private", private_range), ("public", public_range))
        }
        gateway = aws.ec2.InternetGateway("internet", vpc_id=vpc.id, tags=tags("internet-gateway"), opts=own)
        after_gateway = pulumi.ResourceOptions.merge(own, pulumi.ResourceOptions(depends_on=[gateway]))
        address = aws.ec2.Eip("nat-address", domain="vpc", tags=tags("nat-address"), opts=after_gateway)
        nat = aws.ec2.NatGateway(
            "nat",
            allocation_id=address.allocation_id,
            subnet_id=subnets["public"].id,
            connectivity_type="public",
            tags=tags("nat-gateway"),
            opts=after_gateway,
        )

        tables = {}
        for role, subnet in subnets.items():
            tables[role] = aws.ec2.RouteTable(role, vpc_id=vpc.id, tags=tags(f"{role}-routes"), opts=own)
            aws.ec2.RouteTableAssociation(role, subnet_id=subnet.id, route_table_id=tables[role].id, opts=own)
        world = "0.0.0.0/0"
        aws.ec2.Route(
            "public", route_table_id=tables["public"].id, destination_cidr_block=world, gateway_id=gateway.id, opts=own
        )
        aws.ec2.Route(
            "private",
            route_table_id=tables["private"].id,
            destination_cidr_block=world,
            nat_gateway_id=nat.id,
            opts=own,
        )
        # Checkpoints and data would otherwise pay the NAT gateway by the gigabyte.
        aws.ec2.VpcEndpoint(
            "s3",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{args.scope.region}.s3",
            route_table_ids=[tables["private"].id],
            tags=tags("s3-endpoint"),
            opts=own,
        )

        self.vpc_id = vpc.id
        self.private_subnet_id = subnets["private"].id
        self.register_outputs({"vpc_id": self.vpc_id, "private_subnet_id": self.private_subnet_id})
