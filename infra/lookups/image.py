"""Which machine image nodes boot: looked up once, and not again for what stands."""

from dataclasses import dataclass

import pulumi_aws as aws

from infra.lookups.errors import reason
from trainyard.base import CONFIG_KEY, InputError, Problem

# Public parameters, kept current by their owners: Canonical, Debian, AWS (Deep Learning AMIs developer guide, "Base
# OSS Nvidia Driver GPU AMI"). All are x86_64 with cloud-init; the root devices are those of the images.
_PUBLIC = {
    "ubuntu-24.04": ("/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id", "/dev/sda1"),
    "debian-12": ("/aws/service/debian/release/12/latest/amd64", "/dev/xvda"),
    "deep-learning": (
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        "/dev/sda1",
    ),
}
OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Image:
    """`family`: the parameter's name, or `own` for an id of the user's.

    `drifts`: the id is a parameter's as of now, so later changes of it are ignored: an `up` would replace the cluster.
    The family stands in the names of what uses it, so that another family is another resource all the same.
    """

    id: str
    family: str
    root_device: str
    drifts: bool


def look_up_image(name: str, root_volume_gib: int) -> Image:
    """The image of that name (trainyard.config.settings.names.ImageName), on a root volume of that size.

    Raises InputError for an id that can't be used.
    """
    if name in _PUBLIC:
        parameter, root_device = _PUBLIC[name]
        found = aws.ssm.get_parameter(name=parameter).insecure_value
        return Image(id=found, family=name, root_device=root_device, drifts=True)
    try:
        image = aws.ec2.get_ami(filters=[{"name": "image-id", "values": [name]}])
    except Exception as error:
        raise _unusable(name, reason(error)) from error
    if image.architecture != "x86_64":
        raise _unusable(name, f"is for {image.architecture}, and every type of the catalog is x86_64")
    for device in image.block_device_mappings:
        least = int(device.ebs.get("volume_size") or 0)
        if device.device_name == image.root_device_name and least > root_volume_gib:
            raise _unusable(name, f"its root takes {least} GiB, and root_volume_gib is {root_volume_gib}")
    return Image(id=name, family=OWN, root_device=image.root_device_name, drifts=False)


def _unusable(name: str, why: str) -> InputError:
    fix = "Name an x86_64 image of this region that the account may launch"
    return InputError([Problem(key=f"{CONFIG_KEY}.image", value=name, why=why, fix=fix)])
