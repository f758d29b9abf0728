"""The path of a request to an AWS service: from the internet, or from an instance by a VPC endpoint or a NAT gateway.

A request on the server's port for nodes comes from the instance that has the credentials. The path decides the
condition keys of the network, and the endpoint policy that applies:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-network-properties
Security groups and network ACLs are not evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.internet_gateways import InternetGateway

from rehearsal.aws.process import ACCOUNT

OPERATOR_ADDRESS = "203.0.113.10"
"""Public address of every caller outside of the VPCs (RFC 5737: an address for documentation)."""
_INSTANCE_ADDRESS = "203.0.113.20"  # of instances in the default VPC
_INTERNET = "0.0.0.0/0"
# Service of a call -> service of its VPC endpoint, where the names differ.
_ENDPOINT_SERVICES = {"ecr": "ecr.api", "cloudwatch": "monitoring", "tag": "tagging"}
_NO_NETWORK = dict.fromkeys(["aws:sourceip", "aws:sourcevpc", "aws:sourcevpce", "aws:vpcsourceip"])
_instances: dict[str, Any] = {}


class NoRouteError(Exception):
    """No route leads from the instance to the service: the client gets no response."""


@dataclass(frozen=True)
class RequestPath:
    """The path of one request.

    `context`: condition keys of the network. `endpoint_policy`: of the VPC endpoint; None without an endpoint.
    """

    context: Mapping[str, str | None]
    endpoint_policy: str | None = None


def internet_path(address: str = OPERATOR_ADDRESS) -> RequestPath:
    """Return the path of a request from the internet, or from a NAT gateway with this public address."""
    return RequestPath({**_NO_NETWORK, "aws:sourceip": address})


def instance_path(instance_id: str, service: str, region: str) -> RequestPath | None:
    """Return the path from an instance to a service of a region; None if the instance does not exist.

    Raises NoRouteError if neither a VPC endpoint nor a route to the internet exists. In a VPC, an interface endpoint
    with private DNS receives all requests to its service; a gateway endpoint those of the subnets whose route tables
    have a route to it.
    https://docs.aws.amazon.com/vpc/latest/privatelink/privatelink-access-aws-services.html
    https://docs.aws.amazon.com/vpc/latest/privatelink/gateway-endpoints.html
    """
    instance = _find_instance(instance_id)
    if instance is None:
        return None
    backend = instance.ec2_backend
    subnet = _find_subnet(backend, instance.subnet_id)
    if subnet is None:
        raise NoRouteError(f"{instance_id}: its subnet {instance.subnet_id} does not exist")
    table = _route_table(backend, subnet)
    name = f"com.amazonaws.{region}.{_ENDPOINT_SERVICES.get(service, service)}"
    for endpoint in list(backend.vpc_end_points.values()):
        if endpoint.vpc_id == subnet.vpc_id and endpoint.service_name == name and _receives(endpoint, table):
            context = {
                "aws:sourcevpc": endpoint.vpc_id,
                "aws:sourcevpce": endpoint.id,
                "aws:vpcsourceip": instance.private_ip,
            }
            return RequestPath({**_NO_NETWORK, **context}, endpoint.policy_document)
    address = _INSTANCE_ADDRESS if _is_default(backend, subnet.vpc_id) else _public_address(backend, table)
    if address is None:
        raise NoRouteError(f"{instance_id}: no route leads from {subnet.id} to {service} in {region}")
    return internet_path(address)


def _find_instance(instance_id: str) -> Any:
    """Return the instance, in any region, or None. moto keeps the objects of terminated instances."""
    if instance_id not in _instances:
        for account, _, backend in list(ec2_backends.iter_backends()):
            if account == ACCOUNT:
                _instances.update({each.id: each for each in backend.all_instances()})  # type: ignore[attr-defined]
    return _instances.get(instance_id)


def _find_subnet(backend: Any, subnet_id: str) -> Any:
    return next((zone[subnet_id] for zone in list(backend.subnets.values()) if subnet_id in zone), None)


def _route_table(backend: Any, subnet: Any) -> Any:
    """Return the route table of a subnet: the associated one, or the main table of the VPC."""
    tables = [table for table in list(backend.route_tables.values()) if table.vpc_id == subnet.vpc_id]
    associated = (table for table in tables if subnet.id in list(table._associations.values()))
    return next(associated, None) or next((table for table in tables if table.main_association_id), None)


def _is_default(backend: Any, vpc_id: str) -> bool:
    """Return whether a VPC is the default VPC: its instances have public addresses and a route to the internet.

    moto creates it without its internet gateway. https://docs.aws.amazon.com/vpc/latest/userguide/default-vpc.html
    """
    return str(backend.vpcs[vpc_id].is_default).lower() == "true"


def _receives(endpoint: Any, table: Any) -> bool:
    if endpoint.vpc_endpoint_type == "Gateway":
        return table is not None and table.id in (endpoint.route_table_ids or [])
    return bool(endpoint.private_dns_enabled) and endpoint.state == "available"


def _public_address(backend: Any, table: Any) -> str | None:
    """Return the public address of the NAT gateway to which the default route leads; None without one.

    Instances in other than the default VPC have no public addresses, so an internet gateway alone is no way out.
    """
    route = _default_route(table)
    nat = backend.nat_gateways.get(route.nat_gateway_id) if route and route.nat_gateway_id else None
    if nat is None or nat.state != "available":
        return None
    subnet = _find_subnet(backend, nat.subnet_id)
    out = _default_route(_route_table(backend, subnet)) if subnet else None
    if out is None or not isinstance(out.gateway, InternetGateway):
        return None
    return str(nat.address_set[0]["publicIp"])


def _default_route(table: Any) -> Any:
    routes = list(table.routes) if table else []
    return next((route for route in routes if route.destination_cidr_block == _INTERNET), None)
