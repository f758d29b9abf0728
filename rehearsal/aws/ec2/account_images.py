"""AMIs of the account: CreateImage and DeregisterImage.

moto creates an image of 15 GiB for any instance, whatever its volumes.
"""

import re
from functools import partial
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.amis import Ami
from moto.ec2.responses import EC2Response
from moto.ec2.utils import convert_tag_spec, random_ami_id

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2.public_images import is_public
from rehearsal.aws.moto_extension import ec2_error, extend

PENDING_SECONDS = 1.0  # minutes on AWS; long enough to detect a client that does not wait for the image
# Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
_NAME = re.compile(r"[A-Za-z0-9()\[\] ./\-'@_]{3,128}")
_SUPPORTED_KEYS = {"InstanceId", "Name", "Description", "TagSpecifications", "DryRun"}
_TAGGABLE_TYPES = {"image", "snapshot"}


class _PendingImages:
    """Images in the state pending, with the time at which each becomes available."""

    def __init__(self) -> None:
        self._pending: list[tuple[float, Ami]] = []

    def add(self, image: Ami) -> None:
        image.state, image.ebs_snapshot.status = "pending", "pending"
        self._pending.append((CLOCK.now() + PENDING_SECONDS, image))

    def due(self) -> list[Due]:
        return [(when, partial(self._complete, when, image)) for when, image in self._pending]

    def _complete(self, when: float, image: Ami) -> None:
        self._pending.remove((when, image))
        image.state, image.ebs_snapshot.status = "available", "completed"


def install() -> None:
    """Replace moto's CreateImage and DeregisterImage."""
    images = _PendingImages()
    CLOCK.add_source(images.due)

    def create_image(self: Any) -> ActionResult:
        parameters = {key: value for key, value in self._get_params().items() if value not in (None, [], {})}
        if unknown := set(parameters) - _SUPPORTED_KEYS:
            raise NotImplementedError(f"CreateImage with {', '.join(sorted(unknown))}")
        self.error_on_dryrun()
        image = _create(self.ec2_backend, parameters)
        images.add(image)
        return ActionResult({"ImageId": image.id})

    def deregister_image(self: Any) -> ActionResult:
        backend, name = self.ec2_backend, self._get_param("ImageId")
        self.error_on_dryrun()
        if is_public(name, backend.region_name):
            raise ec2_error("AuthFailure", f"Not authorized for image:{name}")
        image = backend.amis.get(name)
        backend.deregister_image(name)
        deleted = []
        if self._get_param("DeleteAssociatedSnapshots", False):
            backend.delete_snapshot(image.ebs_snapshot.id)
            deleted = [{"SnapshotId": image.ebs_snapshot.id, "ReturnCode": "success"}]
        return ActionResult({"Return": True, "DeleteSnapshotResults": deleted})

    extend(EC2Response, create_image, deregister_image)


def _create(backend: Any, parameters: dict[str, Any]) -> Ami:
    """Create the image with the architecture, root device and root volume of its instance."""
    tags = convert_tag_spec(parameters.get("TagSpecifications") or [])
    if others := set(tags) - _TAGGABLE_TYPES:
        raise ec2_error(
            "InvalidParameterValue", f"'{min(others)}' is not a valid taggable resource type for this operation."
        )
    name, instance = parameters["Name"], backend.get_instance(parameters["InstanceId"])
    if not _NAME.fullmatch(name):
        raise ec2_error(
            "InvalidAMIName.Malformed",
            "AMI names must be between 3 and 128 characters long, and may contain "
            "letters, numbers, '(', ')', '.', '-', '/' and '_'",
        )
    for other in backend.amis.values():
        if other.name == name and other.owner_id == backend.account_id:
            raise ec2_error("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {other.id}")
    if instance.state == "running":
        raise NotImplementedError("CreateImage of a running instance, which EC2 would reboot")
    if instance.state != "stopped":
        raise ec2_error("IncorrectInstanceState", f"Instance '{instance.id}' is not in state 'running' or 'stopped'.")
    if set(instance.block_device_mapping) != {instance.root_device_name}:
        raise NotImplementedError("CreateImage of an instance with volumes other than its root volume")
    source = backend.amis[instance.image_id]
    image = Ami(
        backend,
        random_ami_id(),
        instance=instance,
        name=name,
        description=parameters.get("Description"),
        root_device_name=instance.root_device_name,
        root_device_type="ebs",
        hypervisor=source.hypervisor,
        boot_mode=source.boot_mode,
        region_name=instance.availability_zone,
        snapshot_description=f"Created by CreateImage({instance.id})",
        tags=tags.get("image"),
    )
    image.creation_date = CLOCK.utc()
    image.image_location = f"{backend.account_id}/{name}"
    volume = backend.get_volume(instance.block_device_mapping[instance.root_device_name].volume_id)
    snapshot = image.ebs_snapshot
    snapshot.volume, snapshot.encrypted, snapshot.kms_key_id = volume, volume.encrypted, volume.kms_key_id
    snapshot.from_ami = image.id
    snapshot.add_tags(tags.get("snapshot", {}))
    backend.amis[image.id] = image
    return image
