"""Rules about where instances come from, and what they are."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.base import CONFIG_KEY, Problem
from trainyard.config.settings import StackSettings
from trainyard.config.validators.rule import Rule


def capacity_is_one(settings: StackSettings, root: Path) -> Iterator[Problem]:
    given = settings.capacity.given
    if len(given) != 1:
        known = ", ".join(type(settings.capacity).model_fields)
        yield Problem(
            key=f"{CONFIG_KEY}.capacity",
            value=list(given),
            why="instances come from one source, so it takes exactly one key",
            fix=f"Keep one of {known}; one without keys of its own is written on_demand: {{}}",
        )


def base_leaves_room_for_spot(settings: StackSettings, root: Path) -> Iterator[Problem]:
    above = settings.capacity.spot_above_base
    if above and above.base_nodes >= settings.nodes:
        yield Problem(
            key=f"{CONFIG_KEY}.capacity.spot_above_base.base_nodes",
            value=above.base_nodes,
            why=f"of {settings.nodes} nodes none would be spot",
            fix=f"Set nodes to {above.base_nodes + 1} or more, or choose a smaller base or capacity.on_demand",
        )


def type_is_sold_so(settings: StackSettings, root: Path) -> Iterator[Problem]:
    entry, capacity = settings.worker_type, settings.capacity
    if capacity.capacity_block and entry.capacity_block_usd is None:
        yield Problem(
            key=f"{CONFIG_KEY}.capacity.capacity_block",
            value=capacity.capacity_block.id,
            why=f"{entry.name} is not sold in Capacity Blocks",
            fix="Choose another key of capacity, or an instance type such as p5en.48xlarge",
        )
    elif not capacity.capacity_block and entry.on_demand_usd is None:
        yield Problem(
            key=f"{CONFIG_KEY}.capacity",
            value=list(capacity.given),
            why=f"{entry.name} is sold in Capacity Blocks only",
            fix="Buy a block, and name it as capacity.capacity_block.id",
        )


def head_bears_no_gpu(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if settings.head_type.gpu:
        yield Problem(
            key=f"{CONFIG_KEY}.head_instance_type",
            value=settings.head_instance_type,
            why="the head runs no job, so its GPUs would be paid for and never used",
            fix="Choose a type without, such as t3.large",
        )


def torch_drives_the_gpu(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if settings.node.accelerators and (why := settings.worker_type.undriven()):
        yield Problem(
            key=f"{CONFIG_KEY}.instance_type",
            value=settings.instance_type,
            why=why,
            fix="Choose a type with newer GPUs, such as g5.xlarge or p4d.24xlarge",
        )


def the_driver_is_brought(settings: StackSettings, root: Path) -> Iterator[Problem]:
    plain = settings.worker_image in ("ubuntu-24.04", "debian-12")
    installed = settings.node.system == "configure" and "nvidia_driver" not in settings.node.leave_out
    if settings.worker_type.gpu and settings.node.accelerators and plain and not installed:
        yield Problem(
            key=f"{CONFIG_KEY}.image",
            value=settings.image,
            why=f"has no NVIDIA driver, nodes install none, and the job uses the GPUs of {settings.instance_type}",
            fix="Choose deep-learning or an image of your own, or let nodes install it (node.system, node.leave_out)",
        )


def image_suits_the_type(settings: StackSettings, root: Path) -> Iterator[Problem]:
    if settings.worker_image == "deep-learning" and settings.worker_type.gpu is None:
        yield Problem(
            key=f"{CONFIG_KEY}.image",
            value=settings.image,
            why=f"its driver finds no GPU on {settings.instance_type}, and it is ten times as large as a plain image",
            fix="Choose ubuntu-24.04 or debian-12, or leave it out",
        )


def root_volume_holds_the_image(settings: StackSettings, root: Path) -> Iterator[Problem]:
    least = 100
    if settings.worker_image == "deep-learning" and settings.root_volume_gib < least:
        yield Problem(
            key=f"{CONFIG_KEY}.root_volume_gib",
            value=settings.root_volume_gib,
            why="the deep-learning image alone takes some 75 GiB, and the job's Python environment 10",
            fix=f"Choose {least} or more",
        )


RULES = (
    Rule(capacity_is_one, ("capacity",)),
    Rule(base_leaves_room_for_spot, ("capacity", "nodes")),
    Rule(type_is_sold_so, ("capacity", "instance_type")),
    Rule(head_bears_no_gpu, ("head_instance_type",)),
    Rule(torch_drives_the_gpu, ("instance_type", "node.accelerators")),
    Rule(
        the_driver_is_brought,
        ("image", "instance_type", "node.accelerators", "node.leave_out", "node.system"),
    ),
    Rule(image_suits_the_type, ("image", "instance_type")),
    Rule(root_volume_holds_the_image, ("root_volume_gib", "image", "instance_type")),
)
