"""Network interfaces of a launch: what EC2 refuses of them, and making them on an instance."""

from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

from moto.ec2.models.elastic_network_interfaces import Attachment, NetworkInterface
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import InstanceBackend

from rehearsal.aws.extension import extend, refuse

Specification = dict[str, Any]
KNOWN_OF_INTERFACES = frozenset(
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


def check_interfaces(asked: Specification) -> None:
    """Refuse a launch whose interfaces EC2 would refuse. `asked` has the keys of RunInstances, template included."""
    interfaces: list[Specification] = asked.get("NetworkInterfaces") or []
    if not interfaces:
        return
    for key, what in (
        ("SecurityGroupIds", "security groups"),
        ("SecurityGroups", "security groups"),
        ("SubnetId", "subnet ID"),
    ):
        if asked.get(key):
            beside = f"Network interfaces and an instance-level {what}"
            raise _combination(f"{beside} may not be specified on the same request")
    if len(interfaces) > 1 and any(_true(each.get("AssociatePublicIpAddress")) for each in interfaces):
        raise _combination(
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network "
            "interfaces."
        )
    _check_cards(asked["InstanceType"], interfaces)


def _check_cards(instance_type: str, interfaces: list[Specification]) -> None:
    network = INSTANCE_TYPES[instance_type]["NetworkInfo"]
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    places = Counter((_card(each), int(each.get("DeviceIndex", 0))) for each in interfaces)
    twice = next((place for place, count in places.items() if count > 1), None)
    if twice:
        raise refuse("InvalidParameterValue", f"Each network interface requires a unique device index: {twice[1]}.")
    efa = [each for each in interfaces if _type(each) != "interface"]
    if efa and not network.get("EfaSupported"):
        raise _combination(f"{instance_type} instances do not support Elastic Fabric Adapters.")
    if len(efa) > network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0):
        raise refuse("AttachmentLimitExceeded", f"EFA interface count {len(efa)} exceeds the limit for {instance_type}")
    for index, count in Counter(_card(each) for each in interfaces).items():
        if index not in cards:
            raise refuse("InvalidParameterValue", f"Network card index {index} is not valid for {instance_type}.")
        if count > cards[index]["MaximumNetworkInterfaces"]:
            raise refuse("AttachmentLimitExceeded", f"Interface count {count} exceeds the limit for {instance_type}")
    for each in efa:
        if _type(each) not in cards[_card(each)].get("InterfaceTypes", ["interface", "efa", "efa-only"]):
            raise refuse(
                "AttachmentLimitExceeded", f"Network card {_card(each)} of {instance_type} bears no {_type(each)}"
            )
    if any(_type(each) == "efa-only" and _is_primary(each) for each in interfaces):
        raise _combination("The primary network interface can't be an EFA-only interface.")
    if not any(_is_primary(each) for each in interfaces):
        raise _combination("A primary network interface (network card 0, device index 0) is required.")


def _combination(message: str) -> Exception:
    return refuse("InvalidParameterCombination", message)


def _true(value: Any) -> bool:
    return str(value).lower() == "true"


def _type(interface: Specification) -> str:
    return str(interface.get("InterfaceType") or "interface")


def _card(interface: Specification) -> int:
    return int(interface.get("NetworkCardIndex") or 0)


def _is_primary(interface: Specification) -> bool:
    return _card(interface) == 0 and int(interface.get("DeviceIndex", 0)) == 0


def primary_first(interfaces: Sequence[Specification]) -> list[Specification]:
    return sorted(interfaces, key=lambda each: (_card(each), int(each.get("DeviceIndex", 0))))


def attach_interfaces(backend: Any, instance: Any, interfaces: Sequence[Specification], tags: dict[str, str]) -> None:
    """Complete the primary interface that moto made, and make the others.

    moto keeps an instance's interfaces by device index, of which each card has its own 0: ours count on instead.
    """
    primary = instance.nics[0]
    _describe(primary, interfaces[0] if interfaces else {})
    primary.add_tags(tags)
    for number, asked in enumerate(interfaces[1:], start=1):
        interface = backend.create_network_interface(
            instance.subnet_id,
            asked.get("PrivateIpAddress"),
            group_ids=list(asked.get("Groups") or [group.id for group in primary._group_set]),
            tags=tags,
        )
        instance.attach_eni(interface, number)
        interface.device_index = int(asked.get("DeviceIndex", 0))
        _describe(interface, asked)
        if _type(asked) == "efa-only":  # it holds no IP address
            interface.private_ip_address = interface.private_dns_name = None
            interface.private_ip_addresses = []


def _describe(interface: Any, asked: Specification) -> None:
    interface.network_card_index = _card(asked)
    # DescribeInstances and DescribeNetworkInterfaces call a plain one `interface`.
    interface.interface_type = _type(asked)
    interface.description = asked.get("Description") or ""
    interface.delete_on_termination = str(asked.get("DeleteOnTermination")).lower() != "false"


def give_address(instance: Any, address: str) -> None:
    """Make this the private address of the instance's primary interface, whatever its subnet."""
    primary = instance.nics[0]
    primary.private_ip_address = address
    primary.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
    if getattr(primary, "private_dns_name", None):
        primary.private_dns_name = instance.private_dns_name


class Addresses:
    """Hands out the hosts of a network once each, from the second on: the first is a router's."""

    def __init__(self, network: IPv4Network) -> None:
        self._network = network
        self._hosts = network.hosts()
        next(self._hosts, None)

    def take(self) -> str:
        address = next(self._hosts, None)
        if address is None:
            raise refuse(
                "InsufficientFreeAddressesInSubnet", f"The network {self._network} has no free addresses left."
            )
        return str(address)


def install() -> None:
    made = Attachment.__init__

    def with_card(self: Any, interface: Any) -> None:
        made(self, interface)
        self.network_card_index = getattr(interface, "network_card_index", 0)

    def modify_instance_security_groups(self: Any, instance_id: str, new_group_id_list: list[str]) -> Any:
        instance = self.get_instance(instance_id)
        groups = [self.get_security_group_from_id(group_id) for group_id in new_group_id_list]
        instance.security_groups = instance.nics[0]._group_set = groups
        return instance

    extend(Attachment, __init__=with_card)
    # moto adds the instance's groups to those of each interface: in EC2 an interface has its own, and only those.
    extend(NetworkInterface, group_set=property(lambda self: self._group_set), private_dns_name=None)
    extend(InstanceBackend, modify_instance_security_groups)
