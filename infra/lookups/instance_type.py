"""Whether the hardware catalog still says what EC2 says of an instance type."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pulumi
import pulumi_aws as aws

from trainyard.config.catalog import InstanceType


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One fact of an instance type on which the two disagree.

    `launch`: the launch goes by the catalog's: interfaces, processes, what the play expects to find.
    """

    instance_type: str
    what: str
    catalog: Any
    described: Any
    launch: bool

    def __str__(self) -> str:
        consequence = ": the launch goes by the catalog and may fail" if self.launch else ""
        return (
            f"{self.instance_type}: trainyard/config/catalog.json has {self.what} = {self.catalog}, "
            f"EC2 says {self.described}{consequence}"
        )


def look_up_hardware(entry: InstanceType) -> list[Difference]:
    """Ask EC2 what the type is in this region and warn of each difference, which are also returned."""
    found = differences(entry, aws.ec2.get_instance_type(instance_type=entry.name))
    for difference in found:
        pulumi.log.warn(str(difference))
    return found


def differences(entry: InstanceType, described: aws.ec2.GetInstanceTypeResult) -> list[Difference]:
    """What the catalog says otherwise than DescribeInstanceTypes. Which card bears EFA the look-up does not tell."""
    return [
        Difference(instance_type=entry.name, what=what, catalog=ours, described=theirs, launch=launch)
        for what, ours, theirs, launch in _facts(entry, described)
        if ours != theirs
    ]


def _facts(entry: InstanceType, described: aws.ec2.GetInstanceTypeResult) -> Iterator[tuple[str, Any, Any, bool]]:
    """What is compared: its name, the catalog's, EC2's, whether the launch goes by it."""
    gpu, gpus, store = entry.gpu, described.gpuses or [], entry.instance_store
    yield "GPUs", gpu.count if gpu else 0, sum(each.count for each in gpus), True
    yield "EFA interfaces", entry.efa_interfaces, described.efa_maximum_interfaces or 0, True
    cards = sorted((card.index, card.maximum_interfaces) for card in described.network_cards or [])
    yield (
        "network cards (by interfaces that each bears)",
        _grouped(card.interfaces for card in entry.network_cards),
        _grouped(interfaces for _, interfaces in cards),
        True,
    )
    strategies = described.supported_placement_strategies or []
    yield "cluster placement", entry.cluster_placement, "cluster" in strategies, True
    yield "GPU model", [gpu.model] if gpu else [], [each.name for each in gpus], False
    yield "MiB of GPU memory", [gpu.memory_mib] if gpu else [], [each.memory_size for each in gpus], False
    yield "vCPUs", entry.vcpus, described.default_vcpus, False
    yield "MiB of memory", round(entry.memory_gib * 1024), described.memory_size, False
    yield (
        "local disks and GB of each",
        [(store.disks, store.gb)] if store else [],
        [(disk.count, disk.size) for disk in described.instance_disks or []],
        False,
    )


def _grouped(interfaces: Iterable[int]) -> str:
    """In the order of the cards, equal ones together: 17 cards of 4."""
    return ", ".join(f"{len(list(equal))} of {each}" for each, equal in groupby(interfaces)) or "none"
