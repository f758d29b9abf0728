"""What EC2 refuses to delete while something depends on it, or to attach a second time, and what goes with a deletion.

moto deletes most things in any order; a program that deletes in a wrong order would pass here and fail on AWS.
"""

from typing import Any

from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response

from rehearsal.aws.extension import extend, refuse


def _violation(message: str) -> Exception:
    return refuse("DependencyViolation", message)


def _interfaces_in(backend: Any, vpc_id: str) -> list[Any]:
    return [interface for interface in backend.enis.values() if interface.subnet.vpc_id == vpc_id]


def install() -> None:
    _install_networks()
    _install_gateways()


def _install_networks() -> None:
    drop_subnet, drop_group, drop_vpc = (
        EC2Backend.delete_subnet,
        EC2Backend.delete_security_group,
        EC2Backend.delete_vpc,
    )
    drop_interface = EC2Response.delete_network_interface

    def delete_subnet(self: Any, subnet_id: str) -> Any:
        if any(interface.subnet.id == subnet_id for interface in self.enis.values()):
            raise _violation(f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")
        subnet = drop_subnet(self, subnet_id)
        for table in self.route_tables.values():
            for association in [key for key, target in table._associations.items() if target == subnet_id]:
                del table._associations[association]
        for acl in self.network_acls.values():
            for association in [key for key, each in acl._associations.items() if each.subnet_id == subnet_id]:
                del acl._associations[association]
        return subnet

    def delete_security_group(self: Any, name: str | None = None, group_id: str | None = None) -> None:
        group = self.get_security_group_by_name_or_id(group_id or name)
        if group is not None:
            if group.name == "default":
                raise refuse(
                    "CannotDelete", f'the specified group: "{group.id}" name: "default" cannot be deleted by a user'
                )
            holders = any(group in interface._group_set for interface in self.enis.values())
            if holders or any(_names(other, group) for other in _groups(self) if other is not group):
                raise _violation(f"resource {group.id} has a dependent object")
        drop_group(self, name, group_id)

    def delete_vpc(self: Any, vpc_id: str) -> Any:
        dependants = [
            *_interfaces_in(self, vpc_id),
            *(gateway for gateway in self.internet_gateways.values() if gateway.vpc and gateway.vpc.id == vpc_id),
            *(endpoint for endpoint in self.vpc_end_points.values() if endpoint.vpc_id == vpc_id),
            *(group for group in _groups(self) if group.vpc_id == vpc_id and group.name != "default"),
            *(acl for acl in self.network_acls.values() if acl.vpc_id == vpc_id and not acl.default),
            *self.describe_subnets(filters={"vpc-id": vpc_id}),
            *(
                table
                for table in self.route_tables.values()
                if table.vpc_id == vpc_id and not table.main_association_id
            ),
        ]
        if dependants:
            raise _violation(f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")
        vpc = self.get_vpc(vpc_id)
        # The default group, the main route table and the default ACL go with their VPC; DHCP options are shared.
        self.groups.get(vpc_id, {}).clear()
        if vpc is not None:
            vpc.dhcp_options = None
        gone = drop_vpc(self, vpc_id)
        for acl in [key for key, acl in self.network_acls.items() if acl.vpc_id == vpc_id]:
            del self.network_acls[acl]
        return gone

    def delete_network_interface(self: Any) -> Any:
        """A call may not take what an instance or a service holds; their own end may."""
        name = self._get_param("NetworkInterfaceId")
        interface = self.ec2_backend.get_network_interface(name)
        if interface.requester_managed or interface.instance:
            raise refuse("InvalidParameterValue", f"Network interface '{name}' is currently in use.")
        return drop_interface(self)

    extend(EC2Response, delete_network_interface)
    extend(EC2Backend, delete_subnet, delete_security_group, delete_vpc)


def _groups(backend: Any) -> list[Any]:
    return [group for groups in backend.groups.values() for group in groups.values()]


def _names(group: Any, other: Any) -> bool:
    """Whether a rule of `group` names `other`."""
    rules = [*group.ingress_rules, *group.egress_rules]
    return any(rule.source_group.get("GroupId") == other.id for rule in rules)


def _install_gateways() -> None:
    drop_nat = EC2Backend.delete_nat_gateway
    attach, detach, release, make_nat = (
        EC2Backend.attach_internet_gateway,
        EC2Backend.detach_internet_gateway,
        EC2Backend.release_address,
        EC2Backend.create_nat_gateway,
    )

    def create_nat_gateway(self: Any, *args: Any, **kwargs: Any) -> Any:
        gateway = make_nat(self, *args, **kwargs)
        interface = gateway._eni
        address = interface.subnet.get_available_subnet_ip(interface)  # moto takes any private address
        gateway.private_ip = interface.private_ip_address = address
        interface.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
        gateway.address_set[0]["privateIp"] = address
        interface.requester_managed = True
        interface.status = "in-use"
        interface.interface_type = "nat_gateway"
        interface.description = f"Interface for NAT Gateway {gateway.id}"
        return gateway

    def delete_nat_gateway(self: Any, nat_gateway_id: str) -> Any:
        """moto keeps the gateway's interface and its hold on the address."""
        if nat_gateway_id not in self.nat_gateways:
            raise refuse("NatGatewayNotFound", f"NatGateway {nat_gateway_id} was not found")
        gateway = drop_nat(self, nat_gateway_id)
        for address in self.addresses:
            if address.eni is gateway._eni:
                address.eni = address.association_id = None
        if self.enis.pop(gateway._eni.id, None):
            gateway._eni.subnet.del_subnet_ip(gateway.private_ip)
        return gateway

    def attach_internet_gateway(self: Any, internet_gateway_id: str, vpc_id: str) -> Any:
        """A VPC has one at most (AttachInternetGateway); moto sees to the gateway's side alone."""
        there = [gateway for gateway in self.internet_gateways.values() if gateway.vpc and gateway.vpc.id == vpc_id]
        if there and internet_gateway_id not in {gateway.id for gateway in there}:
            raise refuse("InvalidParameterValue", f"Network {vpc_id} already has an internet gateway attached")
        return attach(self, internet_gateway_id, vpc_id)

    def detach_internet_gateway(self: Any, internet_gateway_id: str, vpc_id: str) -> None:
        mapped = any(interface.public_ip for interface in _interfaces_in(self, vpc_id))
        if mapped:
            raise _violation(
                f"Network {vpc_id} has some mapped public address(es). Please unmap those public address(es) before "
                "detaching the gateway."
            )
        detach(self, internet_gateway_id, vpc_id)

    def release_address(self: Any, address: str | None = None, allocation_id: str | None = None) -> None:
        found = self.address_by_allocation([allocation_id]) if allocation_id else self.address_by_ip([address])
        if found[0].eni or found[0].instance:
            raise refuse("InvalidIPAddress.InUse", f"Address {found[0].public_ip} is in use.")
        release(self, address, allocation_id)

    extend(
        EC2Backend,
        create_nat_gateway,
        delete_nat_gateway,
        attach_internet_gateway,
        detach_internet_gateway,
        release_address,
    )
