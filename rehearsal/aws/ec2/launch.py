"""Launching instances as EC2 does: what the request and its launch template ask, checked, then made as asked.

RunInstances, LaunchInstances and an Auto Scaling group's own launches all come through `launch`.
"""

from collections.abc import Mapping
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.models.instances import MetadataOptions
from moto.ec2.utils import convert_tag_spec, parse_user_data

from rehearsal.aws.ec2.capacity import allot, market_of
from rehearsal.aws.ec2.interfaces import Addresses, attach_interfaces, give_address, primary_first
from rehearsal.aws.ec2.launch_checks import Asked, check, check_address
from rehearsal.aws.ec2.placement import placement_groups
from rehearsal.aws.ec2.volume_keys import open_volumes
from rehearsal.aws.extension import refuse

_BY_NAME = {"BlockDeviceMappings": "DeviceName", "TagSpecifications": "ResourceType"}
_BY_FIELD = {"MetadataOptions", "Placement"}


class Launcher:
    """Launches instances; hands out their private addresses from `addresses`, or leaves them to the subnets."""

    def __init__(self, addresses: Addresses | None) -> None:
        self._addresses = addresses

    def launch(
        self,
        backend: Any,
        asked: Asked,
        count: int,
        template: Asked | None = None,
        at_least: int | None = None,
        by_group: bool = False,
    ) -> Any:
        """Launch `count` instances. `asked` has the keys of RunInstances; `template` names launch template and version.

        `by_group`: an Auto Scaling group does, with the rights of its service-linked role to the volumes' keys.
        Where capacity is short it launches what there is, but no fewer than `at_least` (`count` when not given).
        Returns moto's reservation. Raises EC2ClientError with AWS's code, before anything is made.
        """
        version = None
        if template:
            version = backend._get_template_from_args(template)
            asked = merged(version.data, asked)
        check(backend, asked)
        interfaces = primary_first(asked.get("NetworkInterfaces") or [])
        placement = asked.get("Placement") or {}
        subnet = asked.get("SubnetId") or (interfaces[0].get("SubnetId") if interfaces else None)
        groups = interfaces[0].get("Groups") if interfaces else asked.get("SecurityGroupIds")
        if subnet is None:
            subnet = _default_subnet(backend, placement.get("AvailabilityZone"))
        if not groups and not asked.get("SecurityGroups"):
            groups = [backend.get_default_security_group(backend.get_subnet(subnet).vpc_id).id]
        zone = backend.get_subnet(subnet).availability_zone
        held = allot(backend, asked, zone, count, count if at_least is None else at_least)
        count = len(held)
        check_address(backend, asked, interfaces, count, subnet)
        addresses = [self._addresses.take() for _ in range(count)] if self._addresses else []
        before = set(backend.reservations)
        try:
            reservation = self._run(backend, asked, count, subnet, groups, interfaces)
        except Exception:
            _undo(backend, before)
            raise
        for number, instance in enumerate(reservation.instances):
            _complete(backend, instance, asked, interfaces)
            instance.capacity_reservation_id = held[number]
            if addresses:
                give_address(instance, addresses[number])
            if version:
                identity = {"id": version.template.id, "version": str(version.number)}
                instance.add_tags({f"aws:ec2launchtemplate:{key}": value for key, value in identity.items()})
        open_volumes(backend, reservation.instances, by_group)
        return reservation

    def _run(
        self, backend: Any, asked: Asked, count: int, subnet: str, groups: list[str] | None, interfaces: list[Asked]
    ) -> Any:
        """moto's own launch, of all that it can do."""
        first, placement = interfaces[0] if interfaces else {}, asked.get("Placement") or {}
        return backend.run_instances(
            asked["ImageId"],
            count,
            user_data_of(asked),
            list(asked.get("SecurityGroups") or []),
            instance_type=asked["InstanceType"],
            is_instance_type_default=False,
            region_name=backend.region_name,
            placement_hostid=placement.get("HostId"),
            subnet_id=subnet,
            key_name=asked.get("KeyName"),
            security_group_ids=list(groups or []),
            private_ip=first.get("PrivateIpAddress") or asked.get("PrivateIpAddress"),
            associate_public_ip=first.get("AssociatePublicIpAddress"),
            ebs_optimized=asked.get("EbsOptimized") or False,
            disable_api_stop=asked.get("DisableApiStop") or False,
            disable_api_termination=asked.get("DisableApiTermination") or False,
            instance_initiated_shutdown_behavior=asked.get("InstanceInitiatedShutdownBehavior"),
            monitoring_state="enabled" if (asked.get("Monitoring") or {}).get("Enabled") else "disabled",
            metadata_options=asked.get("MetadataOptions") or {},
            client_token=asked.get("ClientToken"),
            block_device_mappings=_devices(backend, asked),
            tags=tags_of(asked),
        )


def _undo(backend: Any, before: set[str]) -> None:
    """A launch that was refused half-way leaves nothing."""
    for name in set(backend.reservations) - before:
        for instance in backend.reservations[name].instances:
            instance.nics[0].delete_on_termination = True
            instance.terminate()
        del backend.reservations[name]


def _complete(backend: Any, instance: Any, asked: Asked, interfaces: list[Asked]) -> None:
    """What moto's own launch leaves out."""
    instance.lifecycle = market_of(asked)
    placement = asked.get("Placement") or {}
    instance.placement.group_name = placement.get("GroupName") or ""
    if instance.placement.group_name:
        instance.placement.group_id = placement_groups(backend)[instance.placement.group_name].id
    instance.placement.tenancy = placement.get("Tenancy") or "default"
    instance.metadata_options = MetadataOptions(asked.get("MetadataOptions"))
    attach_interfaces(backend, instance, interfaces, tags_of(asked).get("network-interface", {}))
    profile = asked.get("IamInstanceProfile") or {}
    if profile:
        held = backend.associate_iam_instance_profile(instance.id, profile.get("Name"), profile.get("Arn"))
        instance.iam_instance_profile["Id"] = held.iam_instance_profile.id
    for mapping in asked.get("BlockDeviceMappings") or []:
        device = instance.block_device_mapping.get(mapping["DeviceName"])
        if device:
            volume, ebs = backend.get_volume(device.volume_id), mapping.get("Ebs") or {}
            volume.iops, volume.throughput = ebs.get("Iops") or volume.iops, ebs.get("Throughput")


def merged(template: Mapping[str, Any], request: Asked) -> Asked:
    """What a request asks on top of a launch template: the request wins, by name in lists of named things."""
    result = {key: value for key, value in template.items() if value is not None}
    for key, value in request.items():
        if value is None or value == [] or value == {}:
            continue
        if key in _BY_FIELD:
            result[key] = {**result.get(key, {}), **value}
        elif key in _BY_NAME:
            name = _BY_NAME[key]
            kept = {each[name]: each for each in result.get(key, [])}
            for each in value:
                kept[each[name]] = _joined(kept.get(each[name]), each)
            result[key] = list(kept.values())
        else:
            result[key] = value
    return result


def _joined(below: Asked | None, above: Asked) -> Asked:
    """A tag specification adds to the template's tags of the same resource type; a device replaces the template's."""
    if below is None or "Tags" not in above:
        return above
    tags = {tag["Key"]: tag for tag in [*below.get("Tags", []), *above["Tags"]]}
    return {**above, "Tags": list(tags.values())}


def user_data_of(asked: Mapping[str, Any]) -> Base64EncodedString | None:
    """User-data as moto keeps it. Raises its InvalidUserData when it is not base64."""
    given = asked.get("UserData")
    return given if isinstance(given, Base64EncodedString) else parse_user_data(given)


def tags_of(asked: Asked) -> dict[str, dict[str, str]]:
    """Tags to put, by resource type."""
    found: dict[str, dict[str, str]] = convert_tag_spec(asked.get("TagSpecifications") or [])
    return found


def _default_subnet(backend: Any, zone: str | None) -> str:
    subnets = backend.get_default_subnets()
    if not subnets:
        raise refuse("VPCIdNotSpecified", "No default VPC for this user")
    if zone and zone not in subnets:
        raise refuse("InvalidInput", f"No default subnet for availability zone: '{zone}'.")
    return str(subnets[zone or min(subnets)].id)


def _devices(backend: Any, asked: Asked) -> list[Asked]:
    """Block devices with what the image and EC2 give where nothing is asked."""
    image = backend.amis[asked["ImageId"]]
    root = image.root_device_name
    devices: dict[str, Asked] = {root: {}}
    for mapping in asked.get("BlockDeviceMappings") or []:
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
                raise refuse(
                    "InvalidBlockDeviceMapping",
                    f"Volume of size {ebs['VolumeSize']}GB is smaller than snapshot '{image.ebs_snapshot.id}', "
                    f"expect size >= {root_size}GB",
                )
    return [{"DeviceName": name, "Ebs": ebs, "NoDevice": None} for name, ebs in devices.items()]
