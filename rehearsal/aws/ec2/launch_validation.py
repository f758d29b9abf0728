"""Validation of a launch, with EC2's error codes, before any resource is created."""

from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from rehearsal.aws.ec2.capacity import validate_capacity_options
from rehearsal.aws.ec2.interfaces import SUPPORTED_INTERFACE_KEYS, validate_interfaces
from rehearsal.aws.ec2.placement import validate_placement
from rehearsal.aws.moto_extension import ec2_error

LaunchParameters = dict[str, Any]
_SUPPORTED_KEYS = frozenset(
    [
        "BlockDeviceMappings",
        "CapacityReservationSpecification",
        "ClientToken",
        "CreditSpecification",
        "DisableApiStop",
        "DisableApiTermination",
        "EbsOptimized",
        "HibernationOptions",
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


def validate_launch(backend: Any, parameters: LaunchParameters) -> None:
    """Raise EC2's error for an invalid launch, and NotImplementedError for parameters that are not emulated."""
    _require_supported("a launch", parameters, _SUPPORTED_KEYS)
    for interface in parameters.get("NetworkInterfaces") or []:
        _require_supported("a network interface", interface, SUPPORTED_INTERFACE_KEYS)
    for key in ("ImageId", "InstanceType"):
        if not parameters.get(key):
            raise ec2_error("MissingParameter", f"The request must contain the parameter {key}")
    instance_type = parameters["InstanceType"]
    if instance_type not in INSTANCE_TYPES:
        raise ec2_error("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    _validate_credits(parameters)
    if str((parameters.get("HibernationOptions") or {}).get("Configured")).lower() == "true":
        raise NotImplementedError("a launch with HibernationOptions.Configured")
    validate_capacity_options(parameters)
    (image,) = backend.describe_images(ami_ids=[parameters["ImageId"]]) or [None]
    if image is None or image.state != "available":
        raise ec2_error("InvalidAMIID.Unavailable", f"The image ID '{parameters['ImageId']}' is not available")
    validate_interfaces(parameters)
    _validate_network(backend, parameters)
    placement = parameters.get("Placement") or {}
    if placement.get("GroupName"):
        validate_placement(backend, placement["GroupName"], instance_type)
    profile = parameters.get("IamInstanceProfile") or {}
    if profile:
        _validate_profile(backend, profile)


def _validate_credits(parameters: LaunchParameters) -> None:
    """Raise EC2's error for CPU credits of a type that is not burstable.

    terraform-provider-aws sends CreditSpecification and HibernationOptions with each RunInstances. Source of the error:
    its issue 5067.
    """
    cpu_credits = (parameters.get("CreditSpecification") or {}).get("CpuCredits")
    instance_type = parameters["InstanceType"]
    if cpu_credits is None:
        return
    if cpu_credits not in ("standard", "unlimited"):
        raise ec2_error("InvalidParameterValue", f"Invalid value '{cpu_credits}' for CpuCredits.")
    if not INSTANCE_TYPES[instance_type].get("BurstablePerformanceSupported"):
        raise ec2_error(
            "InstanceCreditSpecification.NotSupported",
            f"The {instance_type} instance type does not support T2 Unlimited.",
        )


def _require_supported(resource: str, parameters: LaunchParameters, supported: frozenset[str]) -> None:
    unsupported = {key for key, value in parameters.items() if value not in (None, [], {})} - supported
    if unsupported:
        raise NotImplementedError(f"{resource} with {', '.join(sorted(unsupported))}")


def launch_error(backend: Any, parameters: LaunchParameters) -> EC2ClientError | None:
    """Return EC2's error for a launch; None for a valid launch."""
    try:
        validate_launch(backend, parameters)
    except EC2ClientError as error:
        return error
    return None


def _validate_network(backend: Any, parameters: LaunchParameters) -> None:
    """Check that security groups belong to the subnet's VPC and that the subnet's zone offers the instance type."""
    pairs = [(parameters.get("SubnetId"), parameters.get("SecurityGroupIds") or [])]
    interfaces = parameters.get("NetworkInterfaces") or []
    pairs += [(item.get("SubnetId"), item.get("Groups") or []) for item in interfaces]
    for subnet_id, group_ids in pairs:
        subnet = backend.get_subnet(subnet_id) if subnet_id else None
        for group_id in group_ids:
            group = backend.get_security_group_from_id(group_id)
            if group is None:
                raise ec2_error("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")
            if subnet and group.vpc_id != subnet.vpc_id:
                raise ec2_error(
                    "InvalidParameter",
                    f"Security group {group_id} and subnet {subnet_id} belong to different networks.",
                )
        if subnet:
            _validate_zone(backend.region_name, parameters["InstanceType"], subnet.availability_zone)


def _validate_zone(region: str, instance_type: str, zone: str) -> None:
    offerings = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    zones = sorted(offering["Location"] for offering in offerings if offering["InstanceType"] == instance_type)
    if zone not in zones:
        raise ec2_error(
            "Unsupported",
            f"Your requested instance type ({instance_type}) is not supported in your requested Availability Zone "
            f"({zone}). Please retry your request by not specifying an Availability Zone or choosing "
            f"{', '.join(zones)}.",
        )


def _validate_profile(backend: Any, profile: LaunchParameters) -> None:
    key = "Arn" if profile.get("Arn") else "Name"
    try:
        filter_iam_instance_profiles(backend.account_id, backend.partition, profile.get("Arn"), profile.get("Name"))
    except NotFoundException:
        raise ec2_error(
            "InvalidParameterValue",
            f"Value ({profile[key]}) for parameter iamInstanceProfile.{key.lower()} is invalid. "
            f"Invalid IAM Instance Profile {'ARN' if key == 'Arn' else 'name'}",
        ) from None


def validate_address(
    backend: Any, parameters: LaunchParameters, interfaces: list[LaunchParameters], count: int, subnet_id: str
) -> None:
    """Check that a requested private address is free and that the launch is of one instance."""
    address = (interfaces[0] if interfaces else parameters).get("PrivateIpAddress")
    if address is None:
        return
    if count > 1:
        raise ec2_error("InvalidParameterCombination", "A private address may be specified for one instance only")
    if address in backend.get_subnet(subnet_id)._subnet_ips:
        raise ec2_error("InvalidIPAddress.InUse", f"Address {address} is in use.")
