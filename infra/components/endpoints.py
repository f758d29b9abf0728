"""VPC endpoints: a gateway endpoint for S3, interface endpoints for other services."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.components.endpoint_policies import EndpointPolicies
from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class EndpointsArgs:
    """Arguments of Endpoints.

    `services` get an interface endpoint; `route_table_ids` get a route to the S3 gateway endpoint.
    """

    scope: Scope
    vpc_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    route_table_ids: Sequence[pulumi.Input[str]]
    security_group_ids: Sequence[pulumi.Input[str]]
    services: Sequence[str]
    policies: EndpointPolicies


class Endpoints(pulumi.ComponentResource):
    """VPC endpoints. A gateway endpoint is free; an interface endpoint is billed per hour and zone."""

    def __init__(self, name: str, args: EndpointsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Endpoints", name, None, opts)
        prefix = f"com.amazonaws.{args.scope.region}."
        # Without it the NAT gateway bills checkpoints and data per gigabyte.
        aws.ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=args.vpc_id,
            vpc_endpoint_type="Gateway",
            service_name=f"{prefix}s3",
            route_table_ids=args.route_table_ids,
            policy=args.policies.document("s3"),
            tags=args.scope.tags("s3-endpoint"),
            opts=child_options(self, "s3"),
        )
        for service in args.services:
            aws.ec2.VpcEndpoint(
                f"{name}-{service}",
                vpc_id=args.vpc_id,
                vpc_endpoint_type="Interface",
                service_name=f"{prefix}{service}",
                subnet_ids=[args.subnet_id],
                security_group_ids=args.security_group_ids,
                private_dns_enabled=True,
                policy=args.policies.document(service),
                tags=args.scope.tags(f"{service}-endpoint"),
                # Its interface would keep the old subnet from being deleted when the head moves to another zone.
                opts=child_options(self, service, replace_on_changes=["subnetIds"], delete_before_replace=True),
            )
        self.register_outputs({})
