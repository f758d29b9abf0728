"""Compare the hardware catalog with DescribeInstanceTypes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pulumi
import pulumi_aws as aws

from trainyard.config.catalog import InstanceType


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact of an instance type that differs. `affects_launch`: launch or playbook use the catalog's value."""

    instance_type: str
    fact: str
    catalog: Any
    described: Any
    affects_launch: bool

    def __str__(self) -> str:
        consequence = ": the launch uses the catalog and may fail" if self.affects_launch else ""
        return (
            f"{self.instance_type}: trainyard/config/catalog.json has {self.fact} = {self.catalog}, "
            f"EC2 has {self.described}{consequence}"
        )


def compare_with_catalog(entry: InstanceType) -> list[Difference]:
    """Look up the instance type in this region, warn about each difference and return them."""
    result = differences(entry, aws.ec2.get_instance_type(instance_type=entry.name))
    for difference in result:
        pulumi.log.warn(str(difference))
    return result


def differences(entry: InstanceType, described: aws.ec2.GetInstanceTypeResult) -> list[Difference]:
    """Return the facts that differ. The lookup does not return which network card supports EFA."""
    return [
        Difference(
            instance_type=entry.name, fact=fact, catalog=expected, described=actual, affects_launch=affects_launch
        )
        for fact, expected, actual, affects_launch in _facts(entry, described)
        if expected != actual
    ]


def _facts(entry: InstanceType, described: aws.ec2.GetInstanceTypeResult) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield name, value of the catalog, value of EC2, and whether the launch uses it."""
    gpu, gpus, store = entry.gpu, described.gpuses or [], entry.instance_store
    yield "GPUs", gpu.count if gpu else 0, sum(each.count for each in gpus), True
    yield "EFA interfaces", entry.efa_interfaces, described.efa_maximum_interfaces or 0, True
    cards = sorted((card.index, card.maximum_interfaces) for card in described.network_cards or [])
    yield (
        "network cards (number of x interfaces each)",
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
        "instance store volumes and GB of each",
        [(store.disks, store.gb)] if store else [],
        [(disk.count, disk.size) for disk in described.instance_disks or []],
        False,
    )


def _grouped(interfaces: Iterable[int]) -> str:
    """Group equal consecutive cards, such as `17 of 4`."""
    return ", ".join(f"{len(list(equal))} of {each}" for each, equal in groupby(interfaces)) or "none"
