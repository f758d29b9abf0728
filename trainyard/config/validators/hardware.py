"""Validators of instance types, capacity and images."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.config.catalog import catalog
from trainyard.config.settings import StackSettings
from trainyard.config.settings.capacity import PURCHASE_OPTIONS
from trainyard.config.settings.stack import PLAIN_IMAGES
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem

_DEEP_LEARNING_ROOT_GIB = 100


def one_purchase_option(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`capacity` has at most one purchase option."""
    sources = settings.capacity.sources
    if len(sources) > 1:
        known = ", ".join(PURCHASE_OPTIONS)
        yield invalid_setting("capacity", list(sources), "must have one purchase option", f"Keep one of {known}")


def zones_not_decided_elsewhere(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`capacity.zones` has zones without repetition, and one where a subnet or a file system is in one."""
    zones, existing = settings.capacity.zones, settings.network.existing
    if zones is None:
        return
    if existing:
        reason = "conflicts with network.existing: the subnet decides the Availability Zone"
        yield invalid_setting("capacity.zones", list(zones), reason, "Remove it, or use a subnet in another zone")
    elif len(set(zones)) < len(zones) or not zones:
        reason = "repeats a zone" if zones else "has no zone"
        yield invalid_setting("capacity.zones", list(zones), reason, "Name each zone once, or remove the key")
    elif settings.fsx and len(zones) > 1:
        reason = "an FSx for Lustre file system is in one Availability Zone, and so are its nodes"
        yield invalid_setting("capacity.zones", list(zones), reason, "Keep one zone, or remove fsx")


def spot_nodes_above_base(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """A spot_above_base stack has at least one spot node."""
    above = settings.capacity.spot_above_base
    if above and above.base_nodes >= settings.nodes:
        yield invalid_setting(
            "capacity.spot_above_base.base_nodes",
            above.base_nodes,
            f"leaves no spot node of {settings.nodes} nodes",
            f"Set nodes to {above.base_nodes + 1} or more, reduce the base, or use capacity.on_demand",
        )


def spot_types_have_equal_gpus(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The instance types of Spot Instances can run the same job: they have the GPUs and interfaces of the workers."""
    if settings.capacity.spot_settings is None:
        return
    path, spot = settings.capacity.spot_settings
    key = f"capacity.{path}.instance_types"
    if spot.equal_gpus:
        names = [entry.name for entry in settings.types_of(settings.groups[-1])]
        if spot.instance_types:
            reason, fix = "conflicts with equal_gpus, which selects all types", "Keep one of the two keys"
            yield invalid_setting(key, list(spot.instance_types), reason, fix)
        elif len(names) == 1:
            reason = f"no other instance type has the GPUs and network interfaces of {settings.instance_type}"
            yield invalid_setting(f"capacity.{path}.equal_gpus", True, reason, "Remove it, or change instance_type")
        return
    for number, name in enumerate(spot.instance_types):
        entry = catalog().get(name)
        assert entry is not None, "the name is valid"
        if name == settings.instance_type or name in spot.instance_types[:number]:
            yield invalid_setting(f"{key}.{number}", name, "is repeated", "Name each type once")
        elif difference := settings.difference_to_worker(entry):
            yield invalid_setting(f"{key}.{number}", name, difference, "Remove it, or choose another type")


def interruptible_reservation_named(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """An interruptible reservation has an id: EC2 launches into it only where a launch targets it."""
    reservation = settings.capacity.reservation
    if reservation and reservation.interruptible and reservation.id is None:
        reason, fix = "requires capacity.reservation.id", "Set the id of the interruptible reservation"
        yield invalid_setting("capacity.reservation.interruptible", True, reason, fix)


def purchase_option_offered(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """AWS sells the instance type under the purchase option."""
    entry, capacity = settings.worker_type, settings.capacity
    if capacity.capacity_block and entry.capacity_block_usd is None:
        yield invalid_setting(
            "capacity.capacity_block",
            capacity.capacity_block.id,
            f"{entry.name} is not sold in Capacity Blocks",
            "Choose another key of capacity, or an instance type such as p5en.48xlarge",
        )
    elif not capacity.capacity_block and entry.on_demand_usd is None:
        yield invalid_setting(
            "capacity",
            list(capacity.sources),
            f"{entry.name} is sold in Capacity Blocks only",
            "Buy a Capacity Block and set capacity.capacity_block.id",
        )


def head_without_gpus(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The head instance type has no GPUs."""
    if settings.head_type.gpu:
        yield invalid_setting(
            "head_instance_type",
            settings.head_instance_type,
            "the head runs no job, so its GPUs would be billed and unused",
            "Choose a type without GPUs, such as t3.large",
        )


def gpu_supported_by_torch(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The pinned torch build supports the GPUs of the instance type."""
    if settings.node.use_gpus and (reason := settings.worker_type.unsupported_by_cuda()):
        fix = "Choose a type with newer GPUs, such as g5.xlarge or p4d.24xlarge"
        yield invalid_setting("instance_type", settings.instance_type, reason, fix)


def gpu_driver_installed(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The image has the NVIDIA driver, or the node playbook installs it."""
    plain = settings.worker_image_family in PLAIN_IMAGES
    installed = settings.node.provisioning == "configure" and "nvidia_driver" not in settings.node.skip_roles
    if settings.worker_type.gpu and settings.node.use_gpus and plain and not installed:
        yield invalid_setting(
            "image",
            settings.image,
            f"has no NVIDIA driver, nodes install none, and the job uses the GPUs of {settings.instance_type}",
            "Choose deep-learning or a custom image, or let nodes install it (node.provisioning, node.skip_roles)",
        )


def image_matches_instance_type(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """CPU instances do not boot the deep-learning image."""
    if settings.worker_image_family == "deep-learning" and settings.worker_type.gpu is None:
        yield invalid_setting(
            "image",
            settings.image,
            f"{settings.instance_type} has no GPU for its driver, and it is ten times as large as a plain image",
            "Choose ubuntu-24.04 or debian-12, or remove the key",
        )


def root_volume_fits_image(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The root volume holds the deep-learning image and the job's Python environment."""
    if settings.worker_image_family == "deep-learning" and settings.root_volume_gib < _DEEP_LEARNING_ROOT_GIB:
        yield invalid_setting(
            "root_volume_gib",
            settings.root_volume_gib,
            "the deep-learning image uses some 75 GiB, and the job's Python environment 10",
            f"Set it to {_DEEP_LEARNING_ROOT_GIB} or more",
        )


VALIDATORS = (
    one_purchase_option,
    zones_not_decided_elsewhere,
    spot_nodes_above_base,
    spot_types_have_equal_gpus,
    interruptible_reservation_named,
    purchase_option_offered,
    head_without_gpus,
    gpu_supported_by_torch,
    gpu_driver_installed,
    image_matches_instance_type,
    root_volume_fits_image,
)
