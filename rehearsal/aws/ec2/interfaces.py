"""Network interfaces of a launch: validation, creation and attachment."""

from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

from moto.ec2.models.elastic_network_interfaces import Attachment, NetworkInterface
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import InstanceBackend

from rehearsal.aws.moto_extension import ec2_error, extend

Specification = dict[str, Any]
SUPPORTED_INTERFACE_KEYS = frozenset(
    [
        "AssociatePublicIpAddress",
        "DeleteOnTermination",
        "Description",
        "DeviceIndex",
        "Groups",
        "InterfaceType",
        "NetworkCardIndex",
        "PrivateIpAddress",
        "SubnetId",
    ]
)


def validate_interfaces(parameters: Specification) -> None:
    """Raise EC2's error for invalid interfaces. `parameters`: keys of RunInstances, merged with the launch template."""
    interfaces: list[Specification] = parameters.get("NetworkInterfaces") or []
    if not interfaces:
        return
    for key, description in (
        ("SecurityGroupIds", "security groups"),
        ("SecurityGroups", "security groups"),
        ("SubnetId", "subnet ID"),
    ):
        if parameters.get(key):
            options = f"Network interfaces and an instance-level {description}"
            raise _invalid_combination(f"{options} may not be specified on the same request")
    if len(interfaces) > 1 and any(_is_true(item.get("AssociatePublicIpAddress")) for item in interfaces):
        raise _invalid_combination(
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network "
            "interfaces."
        )
    _validate_cards(parameters["InstanceType"], interfaces)


def _validate_cards(instance_type: str, interfaces: list[Specification]) -> None:
    network = INSTANCE_TYPES[instance_type]["NetworkInfo"]
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    positions = Counter((_card(item), int(item.get("DeviceIndex", 0))) for item in interfaces)
    duplicate = next((position for position, count in positions.items() if count > 1), None)
    if duplicate:
        raise ec2_error(
            "InvalidParameterValue", f"Each network interface requires a unique device index: {duplicate[1]}."
        )
    efa_interfaces = [item for item in interfaces if _type(item) != "interface"]
    if efa_interfaces and not network.get("EfaSupported"):
        raise _invalid_combination(f"{instance_type} instances do not support Elastic Fabric Adapters.")
    if len(efa_interfaces) > network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0):
        raise ec2_error(
            "AttachmentLimitExceeded",
            f"EFA interface count {len(efa_interfaces)} exceeds the limit for {instance_type}",
        )
    for index, count in Counter(_card(item) for item in interfaces).items():
        if index not in cards:
            raise ec2_error("InvalidParameterValue", f"Network card index {index} is not valid for {instance_type}.")
        if count > cards[index]["MaximumNetworkInterfaces"]:
            raise ec2_error("AttachmentLimitExceeded", f"Interface count {count} exceeds the limit for {instance_type}")
    for item in efa_interfaces:
        if _type(item) not in cards[_card(item)].get("InterfaceTypes", ["interface", "efa", "efa-only"]):
            raise ec2_error(
                "AttachmentLimitExceeded",
                f"Network card {_card(item)} of {instance_type} does not support {_type(item)}",
            )
    if any(_type(item) == "efa-only" and _is_primary(item) for item in interfaces):
        raise _invalid_combination("The primary network interface can't be an EFA-only interface.")
    if not any(_is_primary(item) for item in interfaces):
        raise _invalid_combination("A primary network interface (network card 0, device index 0) is required.")


def _invalid_combination(message: str) -> Exception:
    return ec2_error("InvalidParameterCombination", message)


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _type(interface: Specification) -> str:
    return str(interface.get("InterfaceType") or "interface")


def _card(interface: Specification) -> int:
    return int(interface.get("NetworkCardIndex") or 0)


def _is_primary(interface: Specification) -> bool:
    return _card(interface) == 0 and int(interface.get("DeviceIndex", 0)) == 0


def sort_by_network_card(interfaces: Sequence[Specification]) -> list[Specification]:
    """Return the interfaces by network card and device index: the primary interface is first."""
    return sorted(interfaces, key=lambda item: (_card(item), int(item.get("DeviceIndex", 0))))


def attach_interfaces(backend: Any, instance: Any, interfaces: Sequence[Specification], tags: dict[str, str]) -> None:
    """Complete the primary interface, which moto created, and create and attach the others.

    moto stores an instance's interfaces by device index, which is unique only per network card: the keys here are the
    position in `interfaces` instead.
    """
    primary = instance.nics[0]
    _set_attributes(primary, interfaces[0] if interfaces else {})
    primary.add_tags(tags)
    for number, specification in enumerate(interfaces[1:], start=1):
        interface = backend.create_network_interface(
            instance.subnet_id,
            specification.get("PrivateIpAddress"),
            group_ids=list(specification.get("Groups") or [group.id for group in primary._group_set]),
            tags=tags,
        )
        instance.attach_eni(interface, number)
        interface.device_index = int(specification.get("DeviceIndex", 0))
        _set_attributes(interface, specification)
        if _type(specification) == "efa-only":  # has no IP address
            interface.private_ip_address = interface.private_dns_name = None
            interface.private_ip_addresses = []


def _set_attributes(interface: Any, specification: Specification) -> None:
    interface.network_card_index = _card(specification)
    # DescribeInstances and DescribeNetworkInterfaces report `interface` for an ENA interface.
    interface.interface_type = _type(specification)
    interface.description = specification.get("Description") or ""
    interface.delete_on_termination = str(specification.get("DeleteOnTermination")).lower() != "false"


def set_primary_address(instance: Any, address: str) -> None:
    """Set the private address of the instance's primary interface, also outside its subnet's CIDR block."""
    primary = instance.nics[0]
    primary.private_ip_address = address
    primary.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
    if getattr(primary, "private_dns_name", None):
        primary.private_dns_name = instance.private_dns_name


class Addresses:
    """Allocator of a network's host addresses, each once. The first address is reserved for a router."""

    def __init__(self, network: IPv4Network) -> None:
        self._network = network
        self._hosts = network.hosts()
        next(self._hosts, None)

    def allocate(self) -> str:
        """Return the next address. Raises InsufficientFreeAddressesInSubnet when none is free."""
        address = next(self._hosts, None)
        if address is None:
            raise ec2_error("InsufficientFreeAddressesInSubnet", f"The network {self._network} has no free addresses.")
        return str(address)


def install() -> None:
    """Extend moto's interfaces by network cards and separate security groups."""
    moto_init = Attachment.__init__

    def init(self: Any, interface: Any) -> None:
        moto_init(self, interface)
        self.network_card_index = getattr(interface, "network_card_index", 0)

    def modify_instance_security_groups(self: Any, instance_id: str, new_group_id_list: list[str]) -> Any:
        instance = self.get_instance(instance_id)
        groups = [self.get_security_group_from_id(group_id) for group_id in new_group_id_list]
        instance.security_groups = instance.nics[0]._group_set = groups
        return instance

    extend(Attachment, __init__=init)
    # moto adds the instance's groups to each interface. In EC2 an interface has only the groups set on it.
    extend(NetworkInterface, group_set=property(lambda self: self._group_set), private_dns_name=None)
    extend(InstanceBackend, modify_instance_security_groups)
