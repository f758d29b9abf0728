"""Look up the AMI of nodes."""

from dataclasses import dataclass
from datetime import date
from typing import Any

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

    `ignore_changes`: the settings name no release, and a newer version of the project must not replace the workers.
    The names of resources contain the family, so that a changed setting replaces them.
    """

    id: str
    family: str
    root_device: str
    ignore_changes: bool


def look_up_image(name: str, root_volume_gib: int) -> Image:
    """Look up an AMI by its name in the settings (trainyard.config.field_types.ImageName) or its id.

    A name without a release is the release of this version of the project. Raises InputError if the AMI does not exist,
    or is not usable with a root volume of `root_volume_gib` GiB.
    """
    family, release = split_image_name(name)
    public = PUBLIC_IMAGES.get(family)
    if public is None:
        return _look_up(name, CUSTOM, root_volume_gib, filters=[{"name": "image-id", "values": [name]}])
    public_name = public.name.format(release=release or public.release)
    return _look_up(
        name,
        name,
        root_volume_gib,
        ignore_changes=release is None,
        filters=[{"name": "name", "values": [public_name]}],
        owners=public.owners,
        # EC2 does not list deprecated AMIs of other owners by default, and a pinned AMI becomes one.
        include_deprecated=True,
    )


def look_up_monthly_image(name: str, root_volume_gib: int, today: date) -> Image:
    """Look up the newest AMI that was released before this month; that of `name` if it has a release.

    Every update in a month has the same result, so the head gets another AMI at most once a month. Raises as
    look_up_image.
    """
    family, release = split_image_name(name)
    if release is not None:
        return look_up_image(name, root_volume_gib)
    public = PUBLIC_IMAGES[family]
    names = [public.name.format(release=f"{period}*") for period in earlier_periods(today)]
    return _look_up(
        name,
        name,
        root_volume_gib,
        filters=[{"name": "name", "values": names}],
        owners=public.owners,
        most_recent=True,
    )


def earlier_periods(today: date) -> list[str]:
    """Return the months of this year before the current month, newest first, and two years before, as in AMI names."""
    months = [f"{today.year}{month:02}" for month in range(today.month - 1, 0, -1)]
    return [*months, str(today.year - 1), str(today.year - 2)]


def _look_up(name: str, family: str, root_volume_gib: int, *, ignore_changes: bool = False, **arguments: Any) -> Image:
    try:
        image = aws.ec2.get_ami(**arguments)
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
        family=family,
        root_device=image.root_device_name,
        ignore_changes=ignore_changes,
    )


def _unusable(name: str, reason: str, code: str) -> InputError:
    fix = "Use an x86_64 AMI of this region that the account may launch, or another release"
    return InputError([invalid_setting("image", name, reason, fix, code)])
