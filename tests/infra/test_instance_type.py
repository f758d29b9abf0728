"""The comparison of the hardware catalog with DescribeInstanceTypes."""

import copy
from collections.abc import Mapping
from typing import Any

import pulumi_aws as aws
import pytest
from pulumi.runtime import rpc

from infra.lookups.instance_type import differences
from rehearsal.adapter.instance_types import read_instance_types, to_lookup_result
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tests.infra.conftest import ROOT
from tools.stack_files import read_stack_file
from trainyard.config import CONFIG_KEY
from trainyard.config.catalog import InstanceType, catalog
from trainyard.errors import InputError


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
    """EC2 returns other facts for each instance type: `changes` to the result of the lookup."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        result = super().invoke(token, arguments)
        return {**result, **self._changes} if token == "aws:ec2/getInstanceType:getInstanceType" else result


@pytest.mark.parametrize(
    "entry",
    [entry for entry in catalog().instance_types if entry.name in read_instance_types()],
    ids=lambda entry: entry.name,
)
def test_catalog_equals_describe_instance_types(entry: InstanceType) -> None:
    assert differences(entry, result_of(read_instance_types()[entry.name])) == []


# Path in DescribeInstanceTypes, other value, message, and whether validators, launch or nodes use the value.
CHANGES: dict[str, tuple[tuple[str | int, ...], Any, str, bool]] = {
    "fewer GPUs": (("GpuInfo", "Gpus", 0, "Count"), 4, "GPUs = 8, EC2 has 4", True),
    "another GPU": (("GpuInfo", "Gpus", 0, "Name"), "A101", "GPU model = ['A100'], EC2 has ['A101']", True),
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
    "other vCPUs": (("VCpuInfo", "DefaultVCpus"), 128, "vCPUs = 96, EC2 has 128", True),
    "other memory": (("MemoryInfo", "SizeInMiB"), 1, "MiB of memory = 1179648, EC2 has 1", False),
    "fewer disks": (("InstanceStorageInfo", "Disks", 0, "Count"), 4, "instance store volumes = 8, EC2 has 4", True),
    "larger disks": (
        ("InstanceStorageInfo", "Disks", 0, "SizeInGB"),
        2000,
        "GB of each instance store volume = [1000], EC2 has [2000]",
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


def test_preview_refuses_each_difference_that_affects_the_launch() -> None:
    account = ChangedAccount(efaMaximumInterfaces=3, defaultVcpus=100)
    with pytest.raises(InputError) as error:
        up(read_stack_file("a100-cluster"), "a100-cluster", ROOT, preview=True, account=account)
    assert str(error.value).splitlines() == [
        f"trainyard:cluster.instance_type = 'p4d.24xlarge': trainyard/config/catalog.json has {fact}. "
        "Correct the catalog, or use another instance type."
        for fact in ("EFA interfaces = 4, EC2 has 3", "vCPUs = 96, EC2 has 100")
    ]


def test_difference_of_a_fact_that_nothing_reads_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    account = ChangedAccount(memorySize=1024)
    config = read_stack_file("a100-cluster")
    config[CONFIG_KEY]["capacity"] = {"zones": ["us-east-1a"]}  # else the preview warns of zones without a search, too
    up(config, "a100-cluster", ROOT, preview=True, account=account)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "p4d.24xlarge: trainyard/config/catalog.json has MiB of memory = 1179648, EC2 has 1024"
    ]
