"""Look up the AMI of nodes."""

from dataclasses import dataclass

import pulumi_aws as aws

from infra.lookups.errors import lookup_failure
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError

# Public SSM parameters of Canonical, Debian and AWS (Deep Learning AMIs developer guide, "Base OSS Nvidia Driver GPU
# AMI"). All images are x86_64 with cloud-init. The second value is the root device.
_PUBLIC = {
    "ubuntu-24.04": ("/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id", "/dev/sda1"),
    "debian-12": ("/aws/service/debian/release/12/latest/amd64", "/dev/xvda"),
    "deep-learning": (
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        "/dev/sda1",
    ),
}
CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class Image:
    """An AMI. `family` is the name in the settings, or `custom` for an AMI id.

    `ignore_changes`: the id is the current value of a public parameter, and a newer AMI must not replace the cluster.
    The names of resources contain the family, so that a changed setting replaces them.
    """

    id: str
    family: str
    root_device: str
    ignore_changes: bool


def look_up_image(name: str, root_volume_gib: int) -> Image:
    """Look up an AMI by its name in the settings (trainyard.config.field_types.ImageName) or its id.

    Raises InputError if the id is not usable with a root volume of `root_volume_gib` GiB.
    """
    if name in _PUBLIC:
        parameter, root_device = _PUBLIC[name]
        image_id = aws.ssm.get_parameter(name=parameter).insecure_value
        return Image(id=image_id, family=name, root_device=root_device, ignore_changes=True)
    try:
        image = aws.ec2.get_ami(filters=[{"name": "image-id", "values": [name]}])
    except Exception as error:
        raise _unusable(name, lookup_failure(error), "image_lookup_failed") from error
    if image.architecture != "x86_64":
        raise _unusable(
            name,
            f"is for {image.architecture}, and the instance types of the catalog are x86_64",
            "image_wrong_architecture",
        )
    for device in image.block_device_mappings:
        minimum_gib = int(device.ebs.get("volume_size") or 0)
        if device.device_name == image.root_device_name and minimum_gib > root_volume_gib:
            raise _unusable(
                name,
                f"its root volume needs {minimum_gib} GiB, and root_volume_gib is {root_volume_gib}",
                "root_volume_below_image",
            )
    return Image(id=name, family=CUSTOM, root_device=image.root_device_name, ignore_changes=False)


def _unusable(name: str, reason: str, code: str) -> InputError:
    fix = "Use an x86_64 AMI of this region that the account may launch"
    return InputError([invalid_setting("image", name, reason, fix, code)])
