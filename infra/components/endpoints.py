"""Endpoints by which nodes reach AWS without the internet: S3 by route, other services by interfaces in the subnet."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class EndpointsArgs:
    """`services`: which get an interface; `route_table_ids`: whose subnets reach S3 by the gateway endpoint."""

    scope: Scope
    vpc_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    route_table_ids: Sequence[pulumi.Input[str]]
    security_group_ids: Sequence[pulumi.Input[str]]
    services: Sequence[str]


class Endpoints(pulumi.ComponentResource):
    """A gateway endpoint costs nothing; an interface costs by the hour, in one zone here."""

    def __init__(self, name: str, args: EndpointsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Endpoints", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        service = f"com.amazonaws.{args.scope.region}."
        # Checkpoints and data would otherwise pay the NAT gateway by the gigabyte.
        aws.ec2.VpcEndpoint(
            "s3",
            vpc_id=args.vpc_id,
            vpc_endpoint_type="Gateway",
            service_name=f"{service}s3",
            route_table_ids=args.route_table_ids,
            tags=args.scope.tags("s3-endpoint"),
            opts=own,
        )
        for each in args.services:
            aws.ec2.VpcEndpoint(
                each,
                vpc_id=args.vpc_id,
                vpc_endpoint_type="Interface",
                service_name=f"{service}{each}",
                subnet_ids=[args.subnet_id],
                security_group_ids=args.security_group_ids,
                private_dns_enabled=True,
                tags=args.scope.tags(f"{each}-endpoint"),
                opts=own,
            )
        self.register_outputs({})
