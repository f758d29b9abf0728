"""Dependencies between EC2 network resources: DependencyViolation errors, and resources deleted with their parent.

moto deletes most resources in any order: without this, a program that deletes in a wrong order would fail only on AWS.
"""

from typing import Any

from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response
from moto.ec2.utils import generic_filter

from rehearsal.aws.moto_extension import ec2_error, extend

_moto_delete_interface = EC2Response.delete_network_interface
_moto_delete_subnet = EC2Backend.delete_subnet
_moto_delete_group = EC2Backend.delete_security_group
_moto_delete_vpc = EC2Backend.delete_vpc
_moto_create_nat = EC2Backend.create_nat_gateway
_moto_describe_nat = EC2Backend.describe_nat_gateways
_moto_delete_nat = EC2Backend.delete_nat_gateway
_moto_attach = EC2Backend.attach_internet_gateway
_moto_detach = EC2Backend.detach_internet_gateway
_moto_release = EC2Backend.release_address


def _violation(message: str) -> Exception:
    return ec2_error("DependencyViolation", message)


def _interfaces_in(backend: Any, vpc_id: str) -> list[Any]:
    return [interface for interface in backend.enis.values() if interface.subnet.vpc_id == vpc_id]


def delete_subnet(self: Any, subnet_id: str) -> Any:
    """Refuse to delete a subnet with an interface; delete its associations with route tables and ACLs."""
    if any(interface.subnet.id == subnet_id for interface in self.enis.values()):
        raise _violation(f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")
    subnet = _moto_delete_subnet(self, subnet_id)
    for table in self.route_tables.values():
        for association in [key for key, target in table._associations.items() if target == subnet_id]:
            del table._associations[association]
    for acl in self.network_acls.values():
        for association in [key for key, link in acl._associations.items() if link.subnet_id == subnet_id]:
            del acl._associations[association]
    return subnet


def delete_security_group(self: Any, name: str | None = None, group_id: str | None = None) -> None:
    """Refuse to delete a default group, and a group that an interface or another group uses."""
    group = self.get_security_group_by_name_or_id(group_id or name)
    if group is not None:
        if group.name == "default":
            raise ec2_error(
                "CannotDelete", f'the specified group: "{group.id}" name: "default" cannot be deleted by a user'
            )
        in_use = any(group in interface._group_set for interface in self.enis.values())
        if in_use or any(_references(other, group) for other in _groups(self) if other is not group):
            raise _violation(f"resource {group.id} has a dependent object")
    _moto_delete_group(self, name, group_id)


def delete_vpc(self: Any, vpc_id: str) -> Any:
    """Refuse to delete a VPC with dependants; delete its default group, main route table and default ACL with it."""
    if _dependants(self, vpc_id):
        raise _violation(f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")
    vpc = self.get_vpc(vpc_id)
    self.groups.get(vpc_id, {}).clear()
    if vpc is not None:
        vpc.dhcp_options = None  # DHCP options are shared
    deleted = _moto_delete_vpc(self, vpc_id)
    for acl in [key for key, acl in self.network_acls.items() if acl.vpc_id == vpc_id]:
        del self.network_acls[acl]
    return deleted


def _dependants(backend: Any, vpc_id: str) -> list[Any]:
    """Return the resources that prevent the deletion of a VPC."""
    tables = [table for table in backend.route_tables.values() if table.vpc_id == vpc_id]
    return [
        *_interfaces_in(backend, vpc_id),
        *(gateway for gateway in backend.internet_gateways.values() if gateway.vpc and gateway.vpc.id == vpc_id),
        *(endpoint for endpoint in backend.vpc_end_points.values() if endpoint.vpc_id == vpc_id),
        *(group for group in _groups(backend) if group.vpc_id == vpc_id and group.name != "default"),
        *(acl for acl in backend.network_acls.values() if acl.vpc_id == vpc_id and not acl.default),
        *backend.describe_subnets(filters={"vpc-id": vpc_id}),
        *(table for table in tables if not table.main_association_id),
    ]


def _groups(backend: Any) -> list[Any]:
    return [group for groups in backend.groups.values() for group in groups.values()]


def _references(group: Any, other: Any) -> bool:
    """Return whether a rule of `group` references the security group `other`."""
    rules = [*group.ingress_rules, *group.egress_rules]
    return any(rule.source_group.get("GroupId") == other.id for rule in rules)


def delete_network_interface(self: Any) -> Any:
    """Refuse to delete an interface that an instance or an AWS service uses."""
    interface_id = self._get_param("NetworkInterfaceId")
    interface = self.ec2_backend.get_network_interface(interface_id)
    if interface.requester_managed or interface.instance:
        raise ec2_error("InvalidParameterValue", f"Network interface '{interface_id}' is currently in use.")
    return _moto_delete_interface(self)


def create_nat_gateway(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Give the gateway an address and an interface of its subnet, as EC2 does."""
    gateway = _moto_create_nat(self, *args, **kwargs)
    interface = gateway._eni
    address = interface.subnet.get_available_subnet_ip(interface)  # moto assigns a random private address
    gateway.private_ip = interface.private_ip_address = address
    interface.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
    gateway.address_set[0]["privateIp"] = address
    interface.requester_managed = True
    interface.status = "in-use"
    interface.interface_type = "nat_gateway"
    interface.description = f"Interface for NAT Gateway {gateway.id}"
    return gateway


def describe_nat_gateways(self: Any, filters: Any, nat_gateway_ids: list[str] | None) -> Any:
    """Apply filters of tags, which moto ignores."""
    tag_filters = {name: values for name, values in (filters or {}).items() if name.startswith("tag")}
    return generic_filter(tag_filters, _moto_describe_nat(self, filters, nat_gateway_ids))


def delete_nat_gateway(self: Any, nat_gateway_id: str) -> Any:
    """Delete the gateway's interface and its address association, which moto keeps."""
    if nat_gateway_id not in self.nat_gateways:
        raise ec2_error("NatGatewayNotFound", f"NatGateway {nat_gateway_id} was not found")
    gateway = _moto_delete_nat(self, nat_gateway_id)
    for address in self.addresses:
        if address.eni is gateway._eni:
            address.eni = address.association_id = None
    if self.enis.pop(gateway._eni.id, None):
        gateway._eni.subnet.del_subnet_ip(gateway.private_ip)
    return gateway


def attach_internet_gateway(self: Any, internet_gateway_id: str, vpc_id: str) -> Any:
    """Refuse a second internet gateway of a VPC (AttachInternetGateway), which moto does not check."""
    attached = [gateway for gateway in self.internet_gateways.values() if gateway.vpc and gateway.vpc.id == vpc_id]
    if attached and internet_gateway_id not in {gateway.id for gateway in attached}:
        raise ec2_error("InvalidParameterValue", f"Network {vpc_id} already has an internet gateway attached")
    return _moto_attach(self, internet_gateway_id, vpc_id)


def detach_internet_gateway(self: Any, internet_gateway_id: str, vpc_id: str) -> None:
    """Refuse to detach the gateway of a VPC with public addresses."""
    has_public_address = any(interface.public_ip for interface in _interfaces_in(self, vpc_id))
    if has_public_address:
        raise _violation(
            f"Network {vpc_id} has some mapped public address(es). Please unmap those public address(es) before "
            "detaching the gateway."
        )
    _moto_detach(self, internet_gateway_id, vpc_id)


def release_address(self: Any, address: str | None = None, allocation_id: str | None = None) -> None:
    """Refuse to release an address that is in use."""
    addresses = self.address_by_allocation([allocation_id]) if allocation_id else self.address_by_ip([address])
    if addresses[0].eni or addresses[0].instance:
        raise ec2_error("InvalidIPAddress.InUse", f"Address {addresses[0].public_ip} is in use.")
    _moto_release(self, address, allocation_id)


def install() -> None:
    """Add the dependency checks to moto's operations."""
    extend(EC2Response, delete_network_interface)
    extend(
        EC2Backend,
        delete_subnet,
        delete_security_group,
        delete_vpc,
        create_nat_gateway,
        describe_nat_gateways,
        delete_nat_gateway,
        attach_internet_gateway,
        detach_internet_gateway,
        release_address,
    )
