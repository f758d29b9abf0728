"""VPC endpoints: what EC2 refuses of them, the network interfaces that an interface endpoint holds, and their end."""

from collections.abc import Iterator
from typing import Any

from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.vpcs import VPCEndPoint

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.extension import extend, refuse

CREATING_SECONDS = 0.5
DELETING_SECONDS = 0.5
_GATEWAYS = ("s3", "dynamodb")  # services that have gateway endpoints
_NO_GROUPS: dict[str, Any] = {"add_security_groups": None, "remove_security_groups": None}
_make, _modify, _drop = (
    EC2Backend.create_vpc_endpoint,
    EC2Backend.modify_vpc_endpoint,
    EC2Backend.delete_vpc_endpoints,
)
_filter = VPCEndPoint.get_filter_value


def create_vpc_endpoint(
    self: Any, vpc_id: str, service_name: str, endpoint_type: str | None, *args: Any, **given: Any
) -> Any:
    """An interface endpoint's interfaces have addresses of their subnets, and its security groups."""
    kind = endpoint_type or "Gateway"
    vpc, subnets = self.get_vpc(vpc_id), [self.get_subnet(each) for each in given.get("subnet_ids") or []]
    groups = given.get("security_group_ids") or []
    if kind == "Gateway":
        _check_gateway(service_name, subnets or groups)
        return _make(self, vpc_id, service_name, kind, *args, **given)
    if kind != "Interface":
        raise NotImplementedError(f"an endpoint of type {kind}")
    if not groups:
        given["security_group_ids"] = groups = [self.get_default_security_group(vpc_id).id]
    _check_interface(self, vpc, subnets, groups, given)
    made: Any = _make(self, vpc_id, service_name, kind, *args, **{**given, "subnet_ids": []})
    interfaces = [_interface(self, made, subnet, groups) for subnet in subnets]
    made.subnet_ids = [subnet.id for subnet in subnets]
    made.network_interface_ids = [interface.id for interface in interfaces]
    made.available_at, made.state = CLOCK.now() + CREATING_SECONDS, "pending"
    return made


def _check_gateway(service: str, extra: list[Any]) -> None:
    if service.rpartition(".")[2] not in _GATEWAYS:
        raise refuse(
            "InvalidParameter",
            f"Endpoint type (Gateway) does not match available service types ([Interface]) of {service}.",
        )
    if extra:
        raise refuse("InvalidParameter", "Subnets and security groups are for endpoints of type Interface.")


def _check_interface(backend: Any, vpc: Any, subnets: list[Any], groups: list[str], given: dict[str, Any]) -> None:
    if given.get("route_table_ids"):
        raise refuse("InvalidParameter", "Route table IDs are for endpoints of type Gateway.")
    for subnet in subnets:
        if subnet.vpc_id != vpc.id:
            raise refuse("InvalidParameter", f"Subnet {subnet.id} does not belong to the VPC {vpc.id}.")
    zones = [subnet.availability_zone for subnet in subnets]
    twice = next((zone for zone in zones if zones.count(zone) > 1), None)
    if twice:
        raise refuse(
            "DuplicateSubnetsInSameZone", f"Found another VPC endpoint subnet in the availability zone {twice}."
        )
    for name in groups:
        group = backend.get_security_group_from_id(name)
        if group is None or group.vpc_id != vpc.id:
            raise refuse("InvalidSecurityGroupId.NotFound", f"The security group {name} does not exist in {vpc.id}.")
    if given.get("private_dns_enabled") and not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        raise refuse(
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
    """An interface endpoint's interfaces follow its subnets and groups. moto calls the endpoint's id `vpc_id`."""
    endpoint = self.describe_vpc_endpoints(vpc_end_point_ids=[vpc_id])[0]
    _modify(self, vpc_id, policy_doc, add_subnets, remove_subnets, **tables, **_NO_GROUPS)
    if endpoint.vpc_endpoint_type != "Interface":
        _check_gateway(endpoint.service_name, [*(add_subnets or []), *(add_security_groups or [])])
        return
    kept = [each for each in endpoint.security_group_ids if each not in (remove_security_groups or [])]
    groups = [*kept, *(each for each in add_security_groups or [] if each not in kept)]
    subnets = [self.get_subnet(each) for each in endpoint.subnet_ids]
    _check_interface(self, self.get_vpc(endpoint.vpc_id), subnets, groups, {})
    held = {self.enis[name].subnet.id: self.enis[name] for name in endpoint.network_interface_ids}
    for name in held.keys() - set(endpoint.subnet_ids):
        _drop_interface(self, held.pop(name))
    for subnet in subnets:
        interface = held.setdefault(subnet.id, held.get(subnet.id) or _interface(self, endpoint, subnet, groups))
        interface._group_set = [self.get_security_group_from_id(name) for name in groups]
    endpoint.security_group_ids = groups
    endpoint.network_interface_ids = [held[subnet.id].id for subnet in subnets]


def _interface(backend: Any, endpoint: Any, subnet: Any, groups: list[str]) -> Any:
    made = backend.create_network_interface(subnet, None, group_ids=groups)
    made.requester_managed, made.status, made.interface_type = True, "in-use", "vpc_endpoint"
    made.description = f"VPC Endpoint Interface {endpoint.id}"
    return made


def _drop_interface(backend: Any, interface: Any) -> None:
    backend.enis.pop(interface.id)
    interface.subnet.del_subnet_ip(interface.private_ip_address)


def delete_vpc_endpoints(self: Any, vpce_ids: list[str] | None = None) -> None:
    """A gateway endpoint goes at once, whatever became of its route tables; an interface endpoint takes a moment."""
    for name in vpce_ids or []:
        endpoint = self.vpc_end_points.get(name)
        if endpoint is None:
            continue
        if endpoint.vpc_endpoint_type == "Interface":
            endpoint.state, endpoint.gone_at = "deleting", endpoint.gone_at or CLOCK.now() + DELETING_SECONDS
        else:
            endpoint.route_table_ids = [key for key in endpoint.route_table_ids or [] if key in self.route_tables]
            _drop(self, [name])
            del self.vpc_end_points[name]


def _due() -> Iterator[Due]:
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        for endpoint in backend.vpc_end_points.values():
            if endpoint.gone_at is not None:
                yield endpoint.gone_at, lambda backend=backend, endpoint=endpoint: _remove(backend, endpoint)  # type: ignore[misc]
            elif endpoint.available_at is not None:
                yield endpoint.available_at, lambda endpoint=endpoint: _ready(endpoint)  # type: ignore[misc]


def _ready(endpoint: Any) -> None:
    endpoint.state, endpoint.available_at = "available", None


def _remove(backend: Any, endpoint: Any) -> None:
    """The endpoint goes, and its interfaces with it."""
    for name in endpoint.network_interface_ids:
        _drop_interface(backend, backend.enis[name])
    del backend.vpc_end_points[endpoint.id]


def get_filter_value(self: Any, filter_name: str, method_name: str | None = None) -> Any:
    return self.id if filter_name == "vpc-endpoint-id" else _filter(self, filter_name, method_name)


def install() -> None:
    extend(VPCEndPoint, get_filter_value, available_at=None, gone_at=None)
    extend(EC2Backend, create_vpc_endpoint, modify_vpc_endpoint, delete_vpc_endpoints)
    CLOCK.watch(_due)
