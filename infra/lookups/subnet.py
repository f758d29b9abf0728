"""Look up an existing VPC and subnet."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi_aws as aws

from infra.lookups.errors import lookup_error
from trainyard.aws import tags
from trainyard.config.settings.network import ExistingNetwork

# Role of the subnet that infra/components/vpc.py creates for the head.
HEAD_SUBNET_ROLE = "private-subnet"


@dataclass(frozen=True, kw_only=True)
class SubnetFacts:
    """Facts of an existing subnet.

    `has_egress`: its default route is a NAT gateway or another hop; `is_public`: it is an internet gateway.
    `services`: AWS services with an interface endpoint in the VPC; `has_s3_endpoint`: a route to the gateway endpoint.
    """

    id: str
    vpc_id: str
    cidr: IPv4Network
    zone: str
    assigns_public_ips: bool
    free_addresses: int
    has_dns: bool
    has_egress: bool
    is_public: bool
    has_s3_endpoint: bool
    services: frozenset[str]


def look_up_subnet(network: ExistingNetwork, region: str, services: Sequence[str]) -> SubnetFacts:
    """Look up the subnet. `services` are the AWS services that nodes call. Raises InputError if it does not exist."""
    try:
        vpc = aws.ec2.get_vpc(id=network.vpc_id)
    except Exception as error:
        raise lookup_error("network.existing.vpc_id", network.vpc_id, error) from error
    try:
        subnet = aws.ec2.get_subnet(id=network.subnet_id)
    except Exception as error:
        raise lookup_error("network.existing.subnet_id", network.subnet_id, error) from error
    table = _routes_of(network.subnet_id, subnet.vpc_id)
    default = [route for route in table.routes if route.cidr_block == "0.0.0.0/0"]
    public = any((route.gateway_id or "").startswith("igw-") for route in default)
    s3 = _endpoint(subnet.vpc_id, region, "s3", "Gateway")
    return SubnetFacts(
        id=network.subnet_id,
        vpc_id=subnet.vpc_id,
        cidr=IPv4Network(subnet.cidr_block),
        zone=subnet.availability_zone,
        assigns_public_ips=subnet.map_public_ip_on_launch,
        free_addresses=subnet.available_ip_address_count,
        has_dns=vpc.enable_dns_support and vpc.enable_dns_hostnames,
        has_egress=bool(default) and not public,
        is_public=public,
        has_s3_endpoint=s3 is not None and table.route_table_id in s3.route_table_ids,
        services=frozenset(name for name in services if _has_interface_endpoint(subnet.vpc_id, region, name)),
    )


def look_up_head_zone(stack_tag: str) -> str | None:
    """Look up the Availability Zone of the head's subnet, which a deployed stack created; None without one."""
    tagged = aws.resourcegroupstaggingapi.get_resources(
        resource_type_filters=["ec2:subnet"],
        tag_filters=[{"key": tags.STACK, "values": [stack_tag]}, {"key": tags.ROLE, "values": [HEAD_SUBNET_ROLE]}],
    )
    for entry in tagged.resource_tag_mapping_lists:
        try:
            return aws.ec2.get_subnet(id=entry.resource_arn.rpartition("/")[2]).availability_zone
        except Exception as error:
            if "no matching" not in str(error):  # the tagging API lists a deleted subnet for a while
                raise
    return None


def _routes_of(subnet_id: str, vpc_id: str) -> aws.ec2.GetRouteTableResult:
    """Return the route table of a subnet: its own, or the main one of the VPC."""
    try:
        return aws.ec2.get_route_table(subnet_id=subnet_id)
    except Exception as error:
        if "returned no results" not in str(error):
            raise
    main = aws.ec2.GetRouteTableFilterArgs(name="association.main", values=["true"])
    return aws.ec2.get_route_table(vpc_id=vpc_id, filters=[main])


def _has_interface_endpoint(vpc_id: str, region: str, service: str) -> bool:
    """Whether the VPC has an interface endpoint with private DNS for the service."""
    endpoint = _endpoint(vpc_id, region, service, "Interface")
    return endpoint is not None and endpoint.private_dns_enabled


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
