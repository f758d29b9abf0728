"""The hardware catalog against what EC2 says at deploy time."""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi_aws as aws
import pytest
from pulumi.runtime import rpc

from infra.lookups.instance_type import differences
from rehearsal.adapter.instance_types import as_look_up, shipped
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static import StaticAccount
from tests.infra.conftest import ROOT
from trainyard.config.catalog import InstanceType, catalog

PROGRAM = """\
import pulumi
from trainyard.config.catalog import catalog
from infra.lookups.instance_type import look_up_hardware

pulumi.export("found", [str(each) for each in look_up_hardware(catalog().get("p5.48xlarge"))])
"""


def entry_of(name: str) -> InstanceType:
    found = catalog().get(name)
    assert found is not None
    return found


def result_of(described: Mapping[str, Any]) -> aws.ec2.GetInstanceTypeResult:
    """As the SDK makes it from an answer."""
    result: aws.ec2.GetInstanceTypeResult = rpc.translate_output_properties(
        as_look_up(described), lambda name: name, aws.ec2.GetInstanceTypeResult
    )
    return result


class ChangedAccount(StaticAccount):
    """Its EC2 knows one network card less of each type, and one vCPU more."""

    def look_up(self, token: str, given: Mapping[str, Any]) -> dict[str, Any]:
        found = super().look_up(token, given)
        return {**found, "networkCards": found["networkCards"][1:], "defaultVcpus": found["defaultVcpus"] + 1}


@pytest.mark.parametrize(
    "entry",
    [entry for entry in catalog().instance_types if entry.name in shipped()],
    ids=lambda entry: entry.name,
)
def test_nothing_differs_from_what_ec2_says(entry: InstanceType) -> None:
    assert differences(entry, result_of(shipped()[entry.name])) == []


# Where DescribeInstanceTypes says otherwise, what else it says, what is told, and whether the launch goes by it.
CHANGES: dict[str, tuple[tuple[str | int, ...], Any, str, bool]] = {
    "fewer GPUs": (("GpuInfo", "Gpus", 0, "Count"), 4, "GPUs = 8, EC2 says 4", True),
    "another GPU": (("GpuInfo", "Gpus", 0, "Name"), "A101", "GPU model = ['A100'], EC2 says ['A101']", False),
    "more GPU memory": (
        ("GpuInfo", "Gpus", 0, "MemoryInfo", "SizeInMiB"),
        50000,
        "MiB of GPU memory = [40960], EC2 says [50000]",
        False,
    ),
    "no GPUs": (("GpuInfo",), {}, "GPUs = 8, EC2 says 0", True),
    "more EFA": (("NetworkInfo", "EfaInfo", "MaximumEfaInterfaces"), 5, "EFA interfaces = 4, EC2 says 5", True),
    "no EFA": (("NetworkInfo", "EfaInfo"), {}, "EFA interfaces = 4, EC2 says 0", True),
    "a narrow card": (
        ("NetworkInfo", "NetworkCards", 1, "MaximumNetworkInterfaces"),
        1,
        "network cards (by interfaces that each bears) = 4 of 15, EC2 says 1 of 15, 1 of 1, 2 of 15",
        True,
    ),
    "no cluster placement": (
        ("PlacementGroupInfo", "SupportedStrategies"),
        ["spread"],
        "cluster placement = True, EC2 says False",
        True,
    ),
    "other vCPUs": (("VCpuInfo", "DefaultVCpus"), 128, "vCPUs = 96, EC2 says 128", False),
    "other memory": (("MemoryInfo", "SizeInMiB"), 1, "MiB of memory = 1179648, EC2 says 1", False),
    "other disks": (
        ("InstanceStorageInfo", "Disks", 0, "SizeInGB"),
        2000,
        "local disks and GB of each = [(8, 1000)], EC2 says [(8, 2000)]",
        False,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_told(change: str) -> None:
    path, value, told, launch = CHANGES[change]
    described = copy.deepcopy(shipped()["p4d.24xlarge"])
    place: Any = described
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    found = differences(entry_of("p4d.24xlarge"), result_of(described))
    assert [each.launch for each in found if told in str(each)] == [launch]
    assert (str(found[0]).endswith("the launch goes by the catalog and may fail")) == launch


def test_the_program_warns_of_each_difference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(ROOT / "infra", tmp_path / "infra", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "infra/__main__.py").write_text(PROGRAM)
    run = up({}, "hardware", tmp_path, account=ChangedAccount())
    says = "p5.48xlarge: trainyard/config/catalog.json has"
    assert run.exports["found"] == [
        f"{says} network cards (by interfaces that each bears) = 32 of 2, EC2 says 31 of 2: "
        "the launch goes by the catalog and may fail",
        f"{says} vCPUs = 192, EC2 says 193",
    ]
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == run.exports["found"]
