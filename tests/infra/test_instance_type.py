"""The comparison of the hardware catalog with DescribeInstanceTypes."""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi_aws as aws
import pytest
from pulumi.runtime import rpc

from infra.lookups.instance_type import differences
from rehearsal.adapter.instance_types import read_instance_types, to_lookup_result
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tests.infra.conftest import ROOT
from trainyard.config.catalog import InstanceType, catalog

PROGRAM = """\
import pulumi
from trainyard.config.catalog import catalog
from infra.lookups.instance_type import compare_with_catalog

pulumi.export("differences", [str(each) for each in compare_with_catalog(catalog().get("p5.48xlarge"))])
"""


def entry_of(name: str) -> InstanceType:
    entry = catalog().get(name)
    assert entry is not None
    return entry


def result_of(described: Mapping[str, Any]) -> aws.ec2.GetInstanceTypeResult:
    """Convert an API response as the SDK does."""
    result: aws.ec2.GetInstanceTypeResult = rpc.translate_output_properties(
        to_lookup_result(described), lambda name: name, aws.ec2.GetInstanceTypeResult
    )
    return result


class ChangedAccount(StaticAccount):
    """EC2 returns one network card less and one vCPU more for each type."""

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        result = super().invoke(token, arguments)
        cards, vcpus = result["networkCards"][1:], result["defaultVcpus"] + 1
        return {**result, "networkCards": cards, "defaultVcpus": vcpus}


@pytest.mark.parametrize(
    "entry",
    [entry for entry in catalog().instance_types if entry.name in read_instance_types()],
    ids=lambda entry: entry.name,
)
def test_catalog_equals_describe_instance_types(entry: InstanceType) -> None:
    assert differences(entry, result_of(read_instance_types()[entry.name])) == []


# Path in DescribeInstanceTypes, other value, message, and whether the launch uses the value.
CHANGES: dict[str, tuple[tuple[str | int, ...], Any, str, bool]] = {
    "fewer GPUs": (("GpuInfo", "Gpus", 0, "Count"), 4, "GPUs = 8, EC2 has 4", True),
    "another GPU": (("GpuInfo", "Gpus", 0, "Name"), "A101", "GPU model = ['A100'], EC2 has ['A101']", False),
    "more GPU memory": (
        ("GpuInfo", "Gpus", 0, "MemoryInfo", "SizeInMiB"),
        50000,
        "MiB of GPU memory = [40960], EC2 has [50000]",
        False,
    ),
    "no GPUs": (("GpuInfo",), {}, "GPUs = 8, EC2 has 0", True),
    "more EFA": (("NetworkInfo", "EfaInfo", "MaximumEfaInterfaces"), 5, "EFA interfaces = 4, EC2 has 5", True),
    "no EFA": (("NetworkInfo", "EfaInfo"), {}, "EFA interfaces = 4, EC2 has 0", True),
    "a narrow card": (
        ("NetworkInfo", "NetworkCards", 1, "MaximumNetworkInterfaces"),
        1,
        "network cards (number of x interfaces each) = 4 of 15, EC2 has 1 of 15, 1 of 1, 2 of 15",
        True,
    ),
    "no cluster placement": (
        ("PlacementGroupInfo", "SupportedStrategies"),
        ["spread"],
        "cluster placement = True, EC2 has False",
        True,
    ),
    "other vCPUs": (("VCpuInfo", "DefaultVCpus"), 128, "vCPUs = 96, EC2 has 128", False),
    "other memory": (("MemoryInfo", "SizeInMiB"), 1, "MiB of memory = 1179648, EC2 has 1", False),
    "other disks": (
        ("InstanceStorageInfo", "Disks", 0, "SizeInGB"),
        2000,
        "instance store volumes and GB of each = [(8, 1000)], EC2 has [(8, 2000)]",
        False,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_reported(change: str) -> None:
    path, value, message, affects_launch = CHANGES[change]
    described = copy.deepcopy(read_instance_types()["p4d.24xlarge"])
    place: Any = described
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    result = differences(entry_of("p4d.24xlarge"), result_of(described))
    assert [each.affects_launch for each in result if message in str(each)] == [affects_launch]
    assert (str(result[0]).endswith("the launch uses the catalog and may fail")) == affects_launch


def test_the_program_warns_of_each_difference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(ROOT / "infra", tmp_path / "infra", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "infra/__main__.py").write_text(PROGRAM)
    run = up({}, "hardware", tmp_path, account=ChangedAccount())
    prefix = "p5.48xlarge: trainyard/config/catalog.json has"
    assert run.exports["differences"] == [
        f"{prefix} network cards (number of x interfaces each) = 32 of 2, EC2 has 31 of 2: "
        "the launch uses the catalog and may fail",
        f"{prefix} vCPUs = 192, EC2 has 193",
    ]
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == run.exports["differences"]
