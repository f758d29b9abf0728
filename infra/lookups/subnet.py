"""A VPC and subnet that somebody else keeps: looked at, never changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi_aws as aws

from infra.lookups.errors import absent
from trainyard.config.settings.network import ExistingNetwork


@dataclass(frozen=True, kw_only=True)
class SubnetFacts:
    """`id`: the subnet's. `vpc_id`: the VPC that it is really in. `gives_addresses`: instances in it get public ones.

    `way_out`: NAT or another hop; `public`: straight to an internet gateway.

    `services`: those that nodes call and that have an endpoint in the VPC; `s3_endpoint`: in the subnet's own routes.
    """

    id: str
    vpc_id: str
    cidr: IPv4Network
    zone: str
    gives_addresses: bool
    free_addresses: int
    resolves_names: bool
    way_out: bool
    public: bool
    s3_endpoint: bool
    services: frozenset[str]


def look_up_subnet(given: ExistingNetwork, region: str, services: Sequence[str]) -> SubnetFacts:
    """`services`: what nodes call. Raises InputError where VPC or subnet is not there."""
    try:
        vpc = aws.ec2.get_vpc(id=given.vpc_id)
    except Exception as error:
        raise absent("network.existing.vpc_id", given.vpc_id, error) from error
    try:
        subnet = aws.ec2.get_subnet(id=given.subnet_id)
    except Exception as error:
        raise absent("network.existing.subnet_id", given.subnet_id, error) from error
    table = _routes_of(given.subnet_id, subnet.vpc_id)
    default = [route for route in table.routes if route.cidr_block == "0.0.0.0/0"]
    public = any((route.gateway_id or "").startswith("igw-") for route in default)
    s3 = _endpoint(subnet.vpc_id, region, "s3", "Gateway")
    return SubnetFacts(
        id=given.subnet_id,
        vpc_id=subnet.vpc_id,
        cidr=IPv4Network(subnet.cidr_block),
        zone=subnet.availability_zone,
        gives_addresses=subnet.map_public_ip_on_launch,
        free_addresses=subnet.available_ip_address_count,
        resolves_names=vpc.enable_dns_support and vpc.enable_dns_hostnames,
        way_out=bool(default) and not public,
        public=public,
        s3_endpoint=s3 is not None and table.route_table_id in s3.route_table_ids,
        services=frozenset(name for name in services if _has_private(subnet.vpc_id, region, name)),
    )


def _routes_of(subnet_id: str, vpc_id: str) -> aws.ec2.GetRouteTableResult:
    """A subnet without routes of its own has its VPC's main ones."""
    try:
        return aws.ec2.get_route_table(subnet_id=subnet_id)
    except Exception as error:
        if "returned no results" not in str(error):
            raise
    main = aws.ec2.GetRouteTableFilterArgs(name="association.main", values=["true"])
    return aws.ec2.get_route_table(vpc_id=vpc_id, filters=[main])


def _has_private(vpc_id: str, region: str, service: str) -> bool:
    """Whether the service's own name leads to an endpoint in the VPC."""
    found = _endpoint(vpc_id, region, service, "Interface")
    return found is not None and found.private_dns_enabled


def _endpoint(vpc_id: str, region: str, service: str, kind: str) -> aws.ec2.GetVpcEndpointResult | None:
    try:
        return aws.ec2.get_vpc_endpoint(
            vpc_id=vpc_id,
            service_name=f"com.amazonaws.{region}.{service}",
            vpc_endpoint_type=kind,
            state="available",
        )
    except Exception as error:
        if "no matching" in str(error):
            return None
        raise
