"""Public AMIs that stacks use, and the SSM public parameters with the ids of the newest ones."""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ParameterDict

from rehearsal.aws.moto_extension import extend


@dataclass(frozen=True, kw_only=True)
class PublicImage:
    """A public AMI of another account, with a different id in every region.

    `parameter`: the SSM parameter with its id; None for an AMI that is not the newest of its name.
    """

    name: str
    parameter: str | None = None
    owner: str
    owner_alias: str | None
    root_gib: int
    root_device: str = "/dev/sda1"

    @property
    def released(self) -> datetime:
        """The day in the name."""
        (day,) = re.findall(r"\d{8}", self.name)
        return datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC)

    def id_in(self, region: str) -> str:
        """Return the AMI id in a region."""
        return "ami-0" + hashlib.sha256(f"{region}{self.name}".encode()).hexdigest()[:16]


PUBLIC_IMAGES = (
    PublicImage(
        parameter="/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        name="ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20261101",
        owner="099720109477",
        owner_alias=None,
        root_gib=8,
    ),
    PublicImage(
        parameter="/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        name="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261101",
        owner="898082745236",
        owner_alias="amazon",
        root_gib=75,
    ),
    PublicImage(
        name="ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260714",
        owner="099720109477",
        owner_alias=None,
        root_gib=8,
    ),
    PublicImage(
        name="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260724",
        owner="898082745236",
        owner_alias="amazon",
        root_gib=75,
    ),
    PublicImage(
        name="debian-12-amd64-20260923-2610",
        owner="136693071363",
        owner_alias="amazon",
        root_gib=8,
        root_device="/dev/xvda",
    ),
    PublicImage(
        parameter="/aws/service/debian/release/12/latest/amd64",
        name="debian-12-amd64-20261101-2286",
        owner="136693071363",
        owner_alias="amazon",
        root_gib=8,
        root_device="/dev/xvda",
    ),
)


def is_public(image_id: str, region: str) -> bool:
    """Return whether an AMI is one of PUBLIC_IMAGES, and so not a resource of the account."""
    return any(image.id_in(region) == image_id for image in PUBLIC_IMAGES)


def _register(backend: Any) -> None:
    for image in PUBLIC_IMAGES:
        ami = Ami(
            backend,
            image.id_in(backend.region_name),
            name=image.name,
            owner_id=image.owner,
            owner_alias=image.owner_alias,
            public=True,
            virtualization_type="hvm",
            architecture="x86_64",
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name=image.root_device,
            region_name=f"{backend.region_name}a",
            boot_mode="uefi-preferred",
            creation_date=image.released,
        )
        ami.ebs_snapshot.volume.size = image.root_gib
        # The snapshot belongs to the AMI's owner, not to the account.
        backend.snapshots.pop(ami.ebs_snapshot.id)
        backend.amis[ami.id] = ami


def _devices(image: Ami) -> list[dict[str, Any]]:
    ebs = {
        "SnapshotId": image.ebs_snapshot.id,
        "VolumeSize": image.ebs_snapshot.volume.size,
        "DeleteOnTermination": True,
        "VolumeType": "gp3",
        "Encrypted": image.ebs_snapshot.encrypted,
    }
    return [{"DeviceName": image.root_device_name, "Ebs": ebs}]


def install() -> None:
    """Add the images to every region and their ids to the SSM parameters."""
    moto_init_parameters = ParameterDict.__init__

    def init_parameters(self: Any, account_id: str, region_name: str) -> None:
        moto_init_parameters(self, account_id, region_name)
        parameter: Any = Parameter
        for image in PUBLIC_IMAGES:
            if image.parameter is None:
                continue
            self[image.parameter].append(
                parameter(
                    account_id=account_id,
                    name=image.parameter,
                    value=image.id_in(region_name),
                    parameter_type="String",
                    description=None,
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=utcnow().timestamp(),
                    version=1,
                    data_type="aws:ec2:image",
                )
            )

    extend(ParameterDict, __init__=init_parameters)
    extend(Ami, block_device_mappings=property(_devices))
    moto_init_backend = ec2_backends.backend.__init__

    def init_backend(self: Any, *args: Any, **kwargs: Any) -> None:
        moto_init_backend(self, *args, **kwargs)
        _register(self)

    extend(ec2_backends.backend, __init__=init_backend)
