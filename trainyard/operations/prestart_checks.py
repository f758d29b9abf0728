"""Checks before a Capacity Block starts: images, blocks, and what nodes would install in time that is paid for.

The preview has checked quotas, zones and the block, and the launch the dataset and the head.
"""

from trainyard.aws import reservations, tags
from trainyard.aws.block_payments import describe_pending_payment
from trainyard.aws.ec2 import describe_image, tags_of
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.images import compute_content
from trainyard.operations.progress import Display
from trainyard.operations.reservations import require_usable

# Instance type of a builder before the block starts: the group's own type would use the block.
BUILDER_TYPE = "c7i.xlarge"
# Role of the node playbook -> the software that it installs.
SOFTWARE = {
    "nvidia_driver": "the NVIDIA driver",
    "cuda": "CUDA",
    "efa": "the EFA software",
    "lustre": "the Lustre client",
    "container": "Docker and the job's image",
}
DRIVERS = frozenset(SOFTWARE[role] for role in ("nvidia_driver", "cuda", "efa"))


def check_before_start(cluster: Cluster, display: Display) -> None:
    """Check the images and Capacity Blocks of the groups, and report what nodes install after the start.

    Raises LaunchError for an image that cannot be launched, and CapacityError for a block that has ended or failed.
    """
    for group in cluster.manifest.groups:
        if group.image is not None:
            _report_installation(cluster, group, _require_image(cluster, group.image), display)
    for block in cluster.manifest.block_reservation_ids:
        if require_usable(cluster.region, cluster.stack, block).state == "payment-pending":
            display.line("capacity", f"{describe_pending_payment(block)}. Then the run fails")


def require_source_reservation_in_account(region: str, group: WorkerGroup) -> None:
    """Check that the account can read reclaims of the group's interruptible reservation, if it has one.

    Only the owner of the source reservation reads its allocation (EC2 user guide, "Interruptible Capacity Reservations
    for capacity owners"). Cloud Control does not return the source: the preview cannot check it. Raises CapacityError.
    """
    reservation_id = group.reservation
    if reservation_id is None or group.market != "interruptible-capacity-reservation":
        return
    source_id = reservations.find_source(region, reservation_id)
    if source_id is None or not reservations.is_own(region, source_id):
        source = f"its source reservation {source_id}" if source_id else "its source reservation"
        raise CapacityError(
            f"capacity.reservation.id = {reservation_id!r}: {source} is not one of this account, so nodes could not "
            "save a checkpoint before a reclaim. Use an interruptible reservation that was created in this account, or "
            "another purchase option (capacity)"
        )


def _require_image(cluster: Cluster, image: str) -> dict[str, str]:
    """Return the tags of an image. Raises LaunchError when instances cannot be launched from it."""
    description = describe_image(cluster.region, image)
    state = "missing" if description is None else str(description["State"])
    if description is None or state != "available":
        raise LaunchError(
            f"the workers' image {image} is {state}: name another image in the stack's file (image), then run pulumi "
            f"up -s {cluster.stack}"
        )
    return tags_of(description)


def _report_installation(cluster: Cluster, group: WorkerGroup, image_tags: dict[str, str], display: Display) -> None:
    manifest = cluster.manifest
    if manifest.node.provisioning == "skip":
        return
    software, is_baked = installed_software(manifest, group), image_tags.get(tags.ROLE) == tags.IMAGE
    if is_baked:
        content = image_tags.get(tags.CONTENT)
        source = image_tags.get(tags.SOURCE, "")
        if content == compute_content(manifest, group, source, has_drivers=True).sha256:
            return
        without_drivers = compute_content(manifest, group, source, has_drivers=False).sha256
        software = [name for name in software if name in DRIVERS] if content == without_drivers else software
        if software:
            text = f"the image {group.image} is baked. After the start of the block, nodes install the rest"
            display.line("image", f"{text}: {', '.join(software)}")
        return
    display.line(
        "image",
        f"{group.image} is not baked. After the start of the block, nodes install what it does not have: "
        f"{', '.join(software)}. To bake it: trainyard bake -s {cluster.stack} --instance-type {BUILDER_TYPE}, "
        f"then trainyard up -s {cluster.stack}",
    )


def installed_software(manifest: Manifest, group: WorkerGroup) -> list[str]:
    """Return what a node of the group installs, unless its image has it."""
    uses_gpus = bool(group.gpus) and manifest.node.use_gpus
    is_required = {
        "nvidia_driver": uses_gpus,
        "cuda": uses_gpus,
        "efa": bool(group.efa_interfaces),
        "lustre": manifest.fsx is not None,
        "container": manifest.job.container is not None,
    }
    roles = [role for role in SOFTWARE if is_required[role] and role not in manifest.node.skip_roles]
    return [*(SOFTWARE[role] for role in roles), *(["the Python environment"] if manifest.node.venv is None else [])]
