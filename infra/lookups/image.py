"""Look up the AMI of nodes."""

from dataclasses import dataclass

import pulumi_aws as aws

from infra.lookups.errors import lookup_failure
from trainyard.config.field_types import split_image_name
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError

CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class PublicImage:
    """A public AMI that its owner publishes again and again. `name` contains `{release}`, its date or serial.

    `release`: the release that this version of the project uses. Another release has another kernel and other drivers.
    """

    owners: tuple[str, ...]
    name: str
    release: str


# AMI names are equal in all regions, ids are not. Canonical's accounts are those of the partitions aws, aws-us-gov and
# aws-cn (documentation.ubuntu.com/aws, "Find Ubuntu images"); Debian's is that of wiki.debian.org/Cloud/AmazonEC2Image.
# deep-learning: a release with the kernel 6.17.0-1019-aws, the newest that FSx for Lustre was seen to have a client for
# (Deep Learning AMIs developer guide, release notes of this date).
PUBLIC_IMAGES = {
    "deep-learning": PublicImage(
        owners=("amazon",),
        name="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) {release}",
        release="20260724",
    ),
    "ubuntu-24.04": PublicImage(
        owners=("099720109477", "513442679011", "837727238323"),
        name="ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-{release}",
        release="20260714",
    ),
    "debian-12": PublicImage(owners=("136693071363",), name="debian-12-amd64-{release}", release="20260923-2610"),
}


@dataclass(frozen=True, kw_only=True)
class Image:
    """An AMI. `family` is the name in the settings, or `custom` for an AMI id.

    `ignore_changes`: the settings name no release, and a newer version of the project must not replace the cluster.
    The names of resources contain the family, so that a changed setting replaces them.
    """

    id: str
    family: str
    root_device: str
    ignore_changes: bool


def look_up_image(name: str, root_volume_gib: int) -> Image:
    """Look up an AMI by its name in the settings (trainyard.config.field_types.ImageName) or its id.

    Raises InputError if the AMI does not exist, or is not usable with a root volume of `root_volume_gib` GiB.
    """
    family, release = split_image_name(name)
    public = PUBLIC_IMAGES.get(family)
    try:
        if public:
            public_name = public.name.format(release=release or public.release)
            # EC2 does not list deprecated AMIs of other owners by default, and a pinned AMI becomes one.
            image = aws.ec2.get_ami(
                filters=[{"name": "name", "values": [public_name]}], owners=public.owners, include_deprecated=True
            )
        else:
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
    return Image(
        id=image.id,
        family=name if public else CUSTOM,
        root_device=image.root_device_name,
        ignore_changes=public is not None and release is None,
    )


def _unusable(name: str, reason: str, code: str) -> InputError:
    fix = "Use an x86_64 AMI of this region that the account may launch, or another release"
    return InputError([invalid_setting("image", name, reason, fix, code)])
