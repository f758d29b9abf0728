"""Compare the hardware catalog with DescribeInstanceTypes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pulumi
import pulumi_aws as aws

from trainyard.config.catalog import InstanceType
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact of an instance type that differs. `affects_launch`: validators, launch or nodes use the value."""

    instance_type: str
    fact: str
    catalog: Any
    described: Any
    affects_launch: bool

    def __str__(self) -> str:
        return f"{self.instance_type}: {self.reason}"

    @property
    def reason(self) -> str:
        """The two values."""
        return f"trainyard/config/catalog.json has {self.fact} = {self.catalog}, EC2 has {self.described}"


def compare_with_catalog(entry: InstanceType) -> None:
    """Look up the instance type in this region. Raises InputError for each difference that affects the launch.

    Nothing reads the other facts, so a difference of those is a warning.
    """
    result = differences(entry, aws.ec2.get_instance_type(instance_type=entry.name))
    for difference in result:
        if not difference.affects_launch:
            pulumi.log.warn(str(difference))
    fix = "Correct the catalog, or use another instance type"
    problems = [
        invalid_setting("instance_type", entry.name, difference.reason, fix, "catalog_differs")
        for difference in result
        if difference.affects_launch
    ]
    if problems:
        raise InputError(problems)


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
    """Yield name, value of the catalog, value of EC2, and whether validators, launch or nodes use it."""
    gpu, gpus = entry.gpu, described.gpuses or []
    store, disks = entry.instance_store, described.instance_disks or []
    yield "GPUs", gpu.count if gpu else 0, sum(each.count for each in gpus), True
    yield "GPU model", [gpu.model] if gpu else [], [each.name for each in gpus], True
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
    yield "vCPUs", entry.vcpus, described.default_vcpus, True  # the validator of quotas
    yield "instance store volumes", store.disks if store else 0, sum(disk.count for disk in disks), True
    yield "GB of each instance store volume", [store.gb] if store else [], [disk.size for disk in disks], False
    yield "MiB of GPU memory", [gpu.memory_mib] if gpu else [], [each.memory_size for each in gpus], False
    yield "MiB of memory", round(entry.memory_gib * 1024), described.memory_size, False


def _grouped(interfaces: Iterable[int]) -> str:
    """Group equal consecutive cards, such as `17 of 4`."""
    return ", ".join(f"{len(list(equal))} of {each}" for each, equal in groupby(interfaces)) or "none"
