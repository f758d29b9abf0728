"""Launches instances: merges the request with its launch template, validates it and calls moto.

RunInstances, LaunchInstances and launches by an Auto Scaling group all call `Launcher.launch`.
"""

from collections.abc import Mapping
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.models.instances import MetadataOptions
from moto.ec2.utils import convert_tag_spec, parse_user_data

from rehearsal.aws.ec2.capacity import allocate_capacity, market_type
from rehearsal.aws.ec2.capacity_requests import record_request
from rehearsal.aws.ec2.interfaces import Addresses, attach_interfaces, set_primary_address, sort_by_network_card
from rehearsal.aws.ec2.launch_validation import LaunchParameters, validate_address, validate_launch
from rehearsal.aws.ec2.placement import placement_groups
from rehearsal.aws.ec2.quotas import check_interfaces
from rehearsal.aws.ec2.volume_keys import check_volume_keys
from rehearsal.aws.moto_extension import ec2_error

_LIST_KEYS = {"BlockDeviceMappings": "DeviceName", "TagSpecifications": "ResourceType"}
_STRUCTURE_KEYS = {"MetadataOptions", "Placement"}


class Launcher:
    """Launcher of instances. Their private addresses are from `addresses`; None: from their subnets."""

    def __init__(self, addresses: Addresses | None) -> None:
        self._addresses = addresses

    def launch(
        self,
        backend: Any,
        parameters: LaunchParameters,
        count: int,
        template: LaunchParameters | None = None,
        minimum_count: int | None = None,
        by_auto_scaling: bool = False,
    ) -> Any:
        """Launch up to `count` instances, at least `minimum_count` (default: `count`), and return moto's reservation.

        `parameters`: keys of RunInstances. `template`: id or name and version of the launch template.
        `by_auto_scaling`: the launch is by an Auto Scaling group: KMS keys are used with the permissions of its
        service-linked role. Raises EC2ClientError with AWS's code before any resource is created.
        """
        version = None
        if template:
            version = backend._get_template_from_args(template)
            parameters = merge_launch_template(version.data, parameters)
        validate_launch(backend, parameters)
        interfaces = sort_by_network_card(parameters.get("NetworkInterfaces") or [])
        subnet, groups = _select_network(backend, parameters, interfaces)
        minimum_count = count if minimum_count is None else minimum_count
        allocated = _allocate(backend, parameters, subnet, count, minimum_count)
        count = len(allocated)
        check_interfaces(backend, count * max(1, len(interfaces)))
        validate_address(backend, parameters, interfaces, count, subnet)
        addresses = [self._addresses.allocate() for _ in range(count)] if self._addresses else []
        existing = set(backend.reservations)
        try:
            reservation = self._run(backend, parameters, count, subnet, groups, interfaces)
        except Exception:
            _rollback(backend, existing)
            raise
        for number, instance in enumerate(reservation.instances):
            _complete(backend, instance, parameters, interfaces)
            instance.capacity_reservation_id = instance.launched_into = allocated[number]
            if addresses:
                set_primary_address(instance, addresses[number])
            if version:
                identity = {"id": version.template.id, "version": str(version.number)}
                instance.add_tags({f"aws:ec2launchtemplate:{key}": value for key, value in identity.items()})
        check_volume_keys(backend, reservation.instances, by_auto_scaling)
        return reservation

    def _run(
        self,
        backend: Any,
        parameters: LaunchParameters,
        count: int,
        subnet: str,
        groups: list[str] | None,
        interfaces: list[LaunchParameters],
    ) -> Any:
        """Call moto's launch with the parameters that it supports."""
        first, placement = interfaces[0] if interfaces else {}, parameters.get("Placement") or {}
        return backend.run_instances(
            parameters["ImageId"],
            count,
            encode_user_data(parameters),
            list(parameters.get("SecurityGroups") or []),
            instance_type=parameters["InstanceType"],
            is_instance_type_default=False,
            region_name=backend.region_name,
            placement_hostid=placement.get("HostId"),
            subnet_id=subnet,
            key_name=parameters.get("KeyName"),
            security_group_ids=list(groups or []),
            private_ip=first.get("PrivateIpAddress") or parameters.get("PrivateIpAddress"),
            associate_public_ip=first.get("AssociatePublicIpAddress"),
            ebs_optimized=parameters.get("EbsOptimized") or False,
            disable_api_stop=parameters.get("DisableApiStop") or False,
            disable_api_termination=parameters.get("DisableApiTermination") or False,
            instance_initiated_shutdown_behavior=parameters.get("InstanceInitiatedShutdownBehavior"),
            monitoring_state="enabled" if (parameters.get("Monitoring") or {}).get("Enabled") else "disabled",
            metadata_options=parameters.get("MetadataOptions") or {},
            client_token=parameters.get("ClientToken"),
            block_device_mappings=_block_devices(backend, parameters),
            tags=tags_by_resource_type(parameters),
        )


def _select_network(
    backend: Any, parameters: LaunchParameters, interfaces: list[LaunchParameters]
) -> tuple[str, list[str] | None]:
    """Return subnet and security groups (ids) of a launch; None where it names groups. The defaults are the VPC's."""
    subnet = parameters.get("SubnetId") or (interfaces[0].get("SubnetId") if interfaces else None)
    groups = interfaces[0].get("Groups") if interfaces else parameters.get("SecurityGroupIds")
    if subnet is None:
        subnet = _default_subnet(backend, (parameters.get("Placement") or {}).get("AvailabilityZone"))
    if not groups and not parameters.get("SecurityGroups"):
        groups = [backend.get_default_security_group(backend.get_subnet(subnet).vpc_id).id]
    return subnet, groups


def _allocate(
    backend: Any, parameters: LaunchParameters, subnet: str, count: int, minimum_count: int
) -> list[str | None]:
    """Return the capacity reservation of each instance that can be launched (None: none), and record the request."""
    zone = backend.get_subnet(subnet).availability_zone
    tags = tags_by_resource_type(parameters).get("instance", {})
    with record_request(backend, "launch", parameters["InstanceType"], zone, count, tags) as grant:
        allocated = allocate_capacity(backend, parameters, zone, count, minimum_count)
        grant.instances = len(allocated)
    return allocated


def _rollback(backend: Any, existing: set[str]) -> None:
    """Remove the instances of a launch that failed after it had started. `existing`: reservations before it."""
    for name in set(backend.reservations) - existing:
        for instance in backend.reservations[name].instances:
            instance.nics[0].delete_on_termination = True
            instance.terminate()
        del backend.reservations[name]


def _complete(backend: Any, instance: Any, parameters: LaunchParameters, interfaces: list[LaunchParameters]) -> None:
    """Apply the parameters that moto's launch does not support."""
    instance.lifecycle = market_type(parameters)
    instance.cpu_credits = (parameters.get("CreditSpecification") or {}).get("CpuCredits")
    placement = parameters.get("Placement") or {}
    instance.placement.group_name = placement.get("GroupName") or ""
    if instance.placement.group_name:
        instance.placement.group_id = placement_groups(backend)[instance.placement.group_name].id
    instance.placement.tenancy = placement.get("Tenancy") or "default"
    instance.metadata_options = MetadataOptions(parameters.get("MetadataOptions"))
    attach_interfaces(backend, instance, interfaces, tags_by_resource_type(parameters).get("network-interface", {}))
    profile = parameters.get("IamInstanceProfile") or {}
    if profile:
        association = backend.associate_iam_instance_profile(instance.id, profile.get("Name"), profile.get("Arn"))
        instance.iam_instance_profile["Id"] = association.iam_instance_profile.id
    for mapping in parameters.get("BlockDeviceMappings") or []:
        device = instance.block_device_mapping.get(mapping["DeviceName"])
        if device:
            volume, ebs = backend.get_volume(device.volume_id), mapping.get("Ebs") or {}
            volume.iops, volume.throughput = ebs.get("Iops") or volume.iops, ebs.get("Throughput")


def merge_launch_template(template: Mapping[str, Any], request: LaunchParameters) -> LaunchParameters:
    """Return launch template data overridden by request parameters; lists with names are merged entry by entry."""
    result = {key: value for key, value in template.items() if value is not None}
    for key, value in request.items():
        if value is None or value == [] or value == {}:
            continue
        if key in _STRUCTURE_KEYS:
            result[key] = {**result.get(key, {}), **value}
        elif key in _LIST_KEYS:
            name = _LIST_KEYS[key]
            entries = {entry[name]: entry for entry in result.get(key, [])}
            for entry in value:
                entries[entry[name]] = _merge_entry(entries.get(entry[name]), entry)
            result[key] = list(entries.values())
        else:
            result[key] = value
    return result


def _merge_entry(base: LaunchParameters | None, override: LaunchParameters) -> LaunchParameters:
    """Merge tags of the same resource type; replace a block device."""
    if base is None or "Tags" not in override:
        return override
    tags = {tag["Key"]: tag for tag in [*base.get("Tags", []), *override["Tags"]]}
    return {**override, "Tags": list(tags.values())}


def encode_user_data(parameters: Mapping[str, Any]) -> Base64EncodedString | None:
    """Return user data as moto stores it. Raises moto's InvalidUserData if it is not base64."""
    user_data = parameters.get("UserData")
    return user_data if isinstance(user_data, Base64EncodedString) else parse_user_data(user_data)


def tags_by_resource_type(parameters: LaunchParameters) -> dict[str, dict[str, str]]:
    """Return the tags of TagSpecifications by resource type."""
    tags: dict[str, dict[str, str]] = convert_tag_spec(parameters.get("TagSpecifications") or [])
    return tags


def _default_subnet(backend: Any, zone: str | None) -> str:
    subnets = backend.get_default_subnets()
    if not subnets:
        raise ec2_error("VPCIdNotSpecified", "No default VPC for this user")
    if zone and zone not in subnets:
        raise ec2_error("InvalidInput", f"No default subnet for availability zone: '{zone}'.")
    return str(subnets[zone or min(subnets)].id)


def _block_devices(backend: Any, parameters: LaunchParameters) -> list[LaunchParameters]:
    """Return the block devices of a launch, with defaults of the image and of EC2."""
    image = backend.amis[parameters["ImageId"]]
    root = image.root_device_name
    devices: dict[str, LaunchParameters] = {root: {}}
    for mapping in parameters.get("BlockDeviceMappings") or []:
        if mapping.get("NoDevice") is not None or mapping.get("VirtualName"):
            devices.pop(mapping["DeviceName"], None)
        else:
            devices[mapping["DeviceName"]] = dict(mapping.get("Ebs") or {})
    for ebs in devices.values():
        if ebs.get("VolumeType") in {"io1", "io2"}:
            raise NotImplementedError(f"a volume of type {ebs['VolumeType']}")
    root_size = image.ebs_snapshot.volume.size
    for name, ebs in devices.items():
        ebs.setdefault("DeleteOnTermination", True)
        ebs.setdefault("VolumeType", "gp3" if name == root else "gp2")
        if name == root:
            if image.ebs_snapshot.encrypted and not ebs.get("Encrypted"):
                ebs.update(Encrypted=True, KmsKeyId=image.ebs_snapshot.kms_key_id)
            ebs.setdefault("VolumeSize", root_size)
            if int(ebs["VolumeSize"]) < root_size:
                raise ec2_error(
                    "InvalidBlockDeviceMapping",
                    f"Volume of size {ebs['VolumeSize']}GB is smaller than snapshot '{image.ebs_snapshot.id}', "
                    f"expect size >= {root_size}GB",
                )
    return [{"DeviceName": name, "Ebs": ebs, "NoDevice": None} for name, ebs in devices.items()]
