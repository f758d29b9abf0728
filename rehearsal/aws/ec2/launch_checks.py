"""What EC2 refuses of a launch, with its error codes, before anything is made."""

from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from rehearsal.aws.ec2.capacity import check_capacity
from rehearsal.aws.ec2.interfaces import KNOWN_OF_INTERFACES, check_interfaces
from rehearsal.aws.ec2.placement import check_placement
from rehearsal.aws.extension import refuse

Asked = dict[str, Any]
_KNOWN = frozenset(
    [
        "BlockDeviceMappings",
        "CapacityReservationSpecification",
        "ClientToken",
        "DisableApiStop",
        "DisableApiTermination",
        "EbsOptimized",
        "IamInstanceProfile",
        "ImageId",
        "InstanceInitiatedShutdownBehavior",
        "InstanceMarketOptions",
        "InstanceType",
        "KeyName",
        "MetadataOptions",
        "Monitoring",
        "NetworkInterfaces",
        "Placement",
        "PrivateIpAddress",
        "SecurityGroupIds",
        "SecurityGroups",
        "SubnetId",
        "TagSpecifications",
        "UserData",
    ]
)


def check(backend: Any, asked: Asked) -> None:
    """Refuse what EC2 refuses, with its code. Raises NotImplementedError for what no instance here would have."""
    _check_known("a launch", asked, _KNOWN)
    for interface in asked.get("NetworkInterfaces") or []:
        _check_known("a network interface", interface, KNOWN_OF_INTERFACES)
    for key in ("ImageId", "InstanceType"):
        if not asked.get(key):
            raise refuse("MissingParameter", f"The request must contain the parameter {key}")
    instance_type = asked["InstanceType"]
    if instance_type not in INSTANCE_TYPES:
        raise refuse("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    check_capacity(asked)
    (image,) = backend.describe_images(ami_ids=[asked["ImageId"]]) or [None]
    if image is None or image.state != "available":
        raise refuse("InvalidAMIID.Unavailable", f"The image ID '{asked['ImageId']}' is not available")
    check_interfaces(asked)
    _check_network(backend, asked)
    placement = asked.get("Placement") or {}
    if placement.get("GroupName"):
        check_placement(backend, placement["GroupName"], instance_type)
    profile = asked.get("IamInstanceProfile") or {}
    if profile:
        _check_profile(backend, profile)


def _check_known(what: str, asked: Asked, known: frozenset[str]) -> None:
    unknown = {key for key, value in asked.items() if value not in (None, [], {})} - known
    if unknown:
        raise NotImplementedError(f"{what} with {', '.join(sorted(unknown))}")


def problem(backend: Any, asked: Asked) -> EC2ClientError | None:
    """Why EC2 would refuse a launch; none when it would not."""
    try:
        check(backend, asked)
    except EC2ClientError as error:
        return error
    return None


def _check_network(backend: Any, asked: Asked) -> None:
    """Groups belong to the subnet's VPC, and the subnet's zone offers the type."""
    pairs = [(asked.get("SubnetId"), asked.get("SecurityGroupIds") or [])]
    pairs += [(each.get("SubnetId"), each.get("Groups") or []) for each in asked.get("NetworkInterfaces") or []]
    for subnet_id, group_ids in pairs:
        subnet = backend.get_subnet(subnet_id) if subnet_id else None
        for group_id in group_ids:
            group = backend.get_security_group_from_id(group_id)
            if group is None:
                raise refuse("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")
            if subnet and group.vpc_id != subnet.vpc_id:
                raise refuse(
                    "InvalidParameter",
                    f"Security group {group_id} and subnet {subnet_id} belong to different networks.",
                )
        if subnet:
            _check_zone(backend.region_name, asked["InstanceType"], subnet.availability_zone)


def _check_zone(region: str, instance_type: str, zone: str) -> None:
    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    zones = sorted(offer["Location"] for offer in offers if offer["InstanceType"] == instance_type)
    if zone not in zones:
        raise refuse(
            "Unsupported",
            f"Your requested instance type ({instance_type}) is not supported in your requested Availability Zone "
            f"({zone}). Please retry your request by not specifying an Availability Zone or choosing "
            f"{', '.join(zones)}.",
        )


def _check_profile(backend: Any, profile: Asked) -> None:
    key = "Arn" if profile.get("Arn") else "Name"
    try:
        filter_iam_instance_profiles(backend.account_id, backend.partition, profile.get("Arn"), profile.get("Name"))
    except NotFoundException:
        raise refuse(
            "InvalidParameterValue",
            f"Value ({profile[key]}) for parameter iamInstanceProfile.{key.lower()} is invalid. "
            f"Invalid IAM Instance Profile {'ARN' if key == 'Arn' else 'name'}",
        ) from None


def check_address(backend: Any, asked: Asked, interfaces: list[Asked], count: int, subnet_id: str) -> None:
    """An address that was asked for is free, and asked for one instance."""
    address = (interfaces[0] if interfaces else asked).get("PrivateIpAddress")
    if address is None:
        return
    if count > 1:
        raise refuse("InvalidParameterCombination", "A private address may be specified for one instance only")
    if address in backend.get_subnet(subnet_id)._subnet_ips:
        raise refuse("InvalidIPAddress.InUse", f"Address {address} is in use.")
