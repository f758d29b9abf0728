"""VPC endpoints: validation, the network interfaces of interface endpoints, and deletion."""

from collections.abc import Iterator
from typing import Any

from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.vpcs import VPCEndPoint

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.moto_extension import ec2_error, extend

CREATING_SECONDS = 0.5
DELETING_SECONDS = 0.5
_GATEWAYS = ("s3", "dynamodb")  # services that have gateway endpoints
_NO_GROUPS: dict[str, Any] = {"add_security_groups": None, "remove_security_groups": None}
_moto_create, _moto_modify, _moto_delete = (
    EC2Backend.create_vpc_endpoint,
    EC2Backend.modify_vpc_endpoint,
    EC2Backend.delete_vpc_endpoints,
)
_moto_filter_value = VPCEndPoint.get_filter_value


def create_vpc_endpoint(
    self: Any, vpc_id: str, service_name: str, endpoint_type: str | None, *args: Any, **kwargs: Any
) -> Any:
    """Create an endpoint; an interface endpoint gets a network interface in each of its subnets."""
    resolved_type = endpoint_type or "Gateway"
    vpc, subnets = self.get_vpc(vpc_id), [self.get_subnet(name) for name in kwargs.get("subnet_ids") or []]
    groups = kwargs.get("security_group_ids") or []
    if resolved_type == "Gateway":
        _validate_gateway(service_name, subnets or groups)
        return _moto_create(self, vpc_id, service_name, resolved_type, *args, **kwargs)
    if resolved_type != "Interface":
        raise NotImplementedError(f"an endpoint of type {resolved_type}")
    if not groups:
        kwargs["security_group_ids"] = groups = [self.get_default_security_group(vpc_id).id]
    _validate_interface(self, vpc, subnets, groups, kwargs)
    endpoint: Any = _moto_create(self, vpc_id, service_name, resolved_type, *args, **{**kwargs, "subnet_ids": []})
    interfaces = [_create_interface(self, endpoint, subnet, groups) for subnet in subnets]
    endpoint.subnet_ids = [subnet.id for subnet in subnets]
    endpoint.network_interface_ids = [interface.id for interface in interfaces]
    endpoint.available_at, endpoint.state = CLOCK.now() + CREATING_SECONDS, "pending"
    return endpoint


def _validate_gateway(service: str, interface_options: list[Any]) -> None:
    if service.rpartition(".")[2] not in _GATEWAYS:
        raise ec2_error(
            "InvalidParameter",
            f"Endpoint type (Gateway) does not match available service types ([Interface]) of {service}.",
        )
    if interface_options:
        raise ec2_error("InvalidParameter", "Subnets and security groups require an endpoint of type Interface.")


def _validate_interface(backend: Any, vpc: Any, subnets: list[Any], groups: list[str], options: dict[str, Any]) -> None:
    if options.get("route_table_ids"):
        raise ec2_error("InvalidParameter", "Route table IDs require an endpoint of type Gateway.")
    for subnet in subnets:
        if subnet.vpc_id != vpc.id:
            raise ec2_error("InvalidParameter", f"Subnet {subnet.id} does not belong to the VPC {vpc.id}.")
    zones = [subnet.availability_zone for subnet in subnets]
    duplicate = next((zone for zone in zones if zones.count(zone) > 1), None)
    if duplicate:
        raise ec2_error(
            "DuplicateSubnetsInSameZone", f"Found another VPC endpoint subnet in the availability zone {duplicate}."
        )
    for name in groups:
        group = backend.get_security_group_from_id(name)
        if group is None or group.vpc_id != vpc.id:
            raise ec2_error("InvalidSecurityGroupId.NotFound", f"The security group {name} does not exist in {vpc.id}.")
    if options.get("private_dns_enabled") and not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        raise ec2_error(
            "InvalidParameter",
            "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true "
            f"for {vpc.id}",
        )


def modify_vpc_endpoint(
    self: Any,
    vpc_id: str,
    policy_doc: str,
    *,
    add_subnets: list[str] | None,
    remove_subnets: list[str] | None,
    add_security_groups: list[str] | None,
    remove_security_groups: list[str] | None,
    **tables: Any,
) -> None:
    """Change an endpoint and its network interfaces. moto names the parameter for the endpoint id `vpc_id`."""
    endpoint = self.describe_vpc_endpoints(vpc_end_point_ids=[vpc_id])[0]
    _moto_modify(self, vpc_id, policy_doc, add_subnets, remove_subnets, **tables, **_NO_GROUPS)
    if endpoint.vpc_endpoint_type != "Interface":
        _validate_gateway(endpoint.service_name, [*(add_subnets or []), *(add_security_groups or [])])
        return
    kept = [name for name in endpoint.security_group_ids if name not in (remove_security_groups or [])]
    groups = [*kept, *(name for name in add_security_groups or [] if name not in kept)]
    subnets = [self.get_subnet(name) for name in endpoint.subnet_ids]
    _validate_interface(self, self.get_vpc(endpoint.vpc_id), subnets, groups, {})
    interfaces = {self.enis[name].subnet.id: self.enis[name] for name in endpoint.network_interface_ids}
    for subnet_id in interfaces.keys() - set(endpoint.subnet_ids):
        _delete_interface(self, interfaces.pop(subnet_id))
    for subnet in subnets:
        if subnet.id not in interfaces:
            interfaces[subnet.id] = _create_interface(self, endpoint, subnet, groups)
        interface = interfaces[subnet.id]
        interface._group_set = [self.get_security_group_from_id(name) for name in groups]
    endpoint.security_group_ids = groups
    endpoint.network_interface_ids = [interfaces[subnet.id].id for subnet in subnets]


def _create_interface(backend: Any, endpoint: Any, subnet: Any, groups: list[str]) -> Any:
    interface = backend.create_network_interface(subnet, None, group_ids=groups)
    interface.requester_managed, interface.status, interface.interface_type = True, "in-use", "vpc_endpoint"
    interface.description = f"VPC Endpoint Interface {endpoint.id}"
    return interface


def _delete_interface(backend: Any, interface: Any) -> None:
    backend.enis.pop(interface.id)
    interface.subnet.del_subnet_ip(interface.private_ip_address)


def delete_vpc_endpoints(self: Any, vpce_ids: list[str] | None = None) -> None:
    """Delete a gateway endpoint at once, even if its route tables do not exist; an interface endpoint after a delay."""
    for name in vpce_ids or []:
        endpoint = self.vpc_end_points.get(name)
        if endpoint is None:
            continue
        if endpoint.vpc_endpoint_type == "Interface":
            endpoint.state, endpoint.deleted_at = "deleting", endpoint.deleted_at or CLOCK.now() + DELETING_SECONDS
        else:
            endpoint.route_table_ids = [key for key in endpoint.route_table_ids or [] if key in self.route_tables]
            _moto_delete(self, [name])
            del self.vpc_end_points[name]


def _due_transitions() -> Iterator[Due]:
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        for endpoint in backend.vpc_end_points.values():
            if endpoint.deleted_at is not None:
                yield endpoint.deleted_at, lambda backend=backend, endpoint=endpoint: _remove(backend, endpoint)  # type: ignore[misc]
            elif endpoint.available_at is not None:
                yield endpoint.available_at, lambda endpoint=endpoint: _set_available(endpoint)  # type: ignore[misc]


def _set_available(endpoint: Any) -> None:
    endpoint.state, endpoint.available_at = "available", None


def _remove(backend: Any, endpoint: Any) -> None:
    """Delete the endpoint and its network interfaces."""
    for name in endpoint.network_interface_ids:
        _delete_interface(backend, backend.enis[name])
    del backend.vpc_end_points[endpoint.id]


def get_filter_value(self: Any, filter_name: str, method_name: str | None = None) -> Any:
    """Add the filter vpc-endpoint-id to moto's filters."""
    return self.id if filter_name == "vpc-endpoint-id" else _moto_filter_value(self, filter_name, method_name)


def install() -> None:
    """Replace moto's endpoint operations and add pending state changes to the clock."""
    extend(VPCEndPoint, get_filter_value, available_at=None, deleted_at=None)
    extend(EC2Backend, create_vpc_endpoint, modify_vpc_endpoint, delete_vpc_endpoints)
    CLOCK.add_source(_due_transitions)
