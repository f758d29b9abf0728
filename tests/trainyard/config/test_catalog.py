"""The catalog against AWS's own data and the pinned torch, and the layout of interfaces."""

import gzip
import json
from pathlib import Path
from typing import Any

import moto
import pytest
import torch

from trainyard.config.catalog import TORCH_CUDA, InstanceType, catalog
from trainyard.config.gpus import Chip, chips

ABSENT = {"p3.2xlarge", "p3.8xlarge", "p3.16xlarge"}  # from AWS's data as moto ships it


def entry_of(name: str) -> InstanceType:
    found = catalog().get(name)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """DescribeInstanceTypes of the real AWS, as moto ships it."""
    file = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return found


def test_only_what_aws_s_data_lacks_is_left_unchecked(described: dict[str, Any]) -> None:
    assert {entry.name for entry in catalog().instance_types} - described.keys() == ABSENT


@pytest.mark.parametrize(
    "entry", [entry for entry in catalog().instance_types if entry.name not in ABSENT], ids=lambda entry: entry.name
)
def test_entry_is_what_aws_describes(entry: InstanceType, described: dict[str, Any]) -> None:
    aws = described[entry.name]
    network, gpus = aws["NetworkInfo"], aws.get("GpuInfo", {}).get("Gpus", [])
    assert aws["ProcessorInfo"]["SupportedArchitectures"] == ["x86_64"]
    assert entry.vcpus == aws["VCpuInfo"]["DefaultVCpus"]
    assert entry.memory_gib == aws["MemoryInfo"]["SizeInMiB"] / 1024
    assert ([(entry.gpu.model, entry.gpu.count, entry.gpu.memory_mib)] if entry.gpu else []) == [
        (gpu["Name"], gpu["Count"], gpu["MemoryInfo"]["SizeInMiB"]) for gpu in gpus
    ]
    assert entry.efa_interfaces == network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert entry.cluster_placement == ("cluster" in aws["PlacementGroupInfo"]["SupportedStrategies"])
    assert (entry.capacity_block_usd is not None) == ("capacity-block" in aws["SupportedUsageClasses"])
    store = entry.instance_store
    assert ([(store.disks, store.gb)] if store else []) == [
        (disk["Count"], disk["SizeInGB"]) for disk in aws.get("InstanceStorageInfo", {}).get("Disks", [])
    ]
    assert all("interface" in card["InterfaceTypes"] for card in network["NetworkCards"])
    assert [(card.index, card.interfaces, card.efa) for card in entry.network_cards] == [
        (card["NetworkCardIndex"], card["MaximumNetworkInterfaces"], "efa-only" in card["InterfaceTypes"])
        for card in network["NetworkCards"]
    ]


def test_names_are_unique() -> None:
    names = [entry.name for entry in catalog().instance_types]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("entry", catalog().instance_types, ids=lambda entry: entry.name)
def test_entry_holds_together(entry: InstanceType) -> None:
    assert entry.on_demand_usd or entry.capacity_block_usd
    if entry.gpu:
        assert entry.gpu.chip.model == entry.gpu.model
        assert (entry.gpu.interconnect is None) == (entry.gpu.count == 1)
    for card in entry.network_cards:
        asked = sum(one.card == card.index for one in entry.interfaces(entry.efa_interfaces > 0))
        assert asked <= card.interfaces


def test_pinned_torch_is_built_for_the_cuda_that_types_are_measured_by() -> None:
    if torch.version.cuda is None:
        pytest.skip("this torch is a CPU build")
    assert torch.version.cuda == TORCH_CUDA


@pytest.mark.parametrize("chip", chips(), ids=lambda chip: chip.model)
def test_torch_carries_code_for_what_is_not_refused(chip: Chip) -> None:
    if torch.version.cuda is None:
        pytest.skip("this torch is a CPU build")
    major, minor = chip.compute_capability.split(".")
    # Code for a capability runs on every later minor of it (CUDA programming guide, "Binary Compatibility").
    flags = str(torch._C._cuda_getArchFlags()).split()
    carried = any(flag[3:-1] == major and flag[-1] <= minor for flag in flags)
    entry = next(entry for entry in catalog().instance_types if entry.gpu and entry.gpu.model == chip.model)
    assert carried == (entry.undriven() is None)


def test_v100_is_refused_with_the_reason_under_cuda_13_only() -> None:
    p3 = entry_of("p3.16xlarge")
    why = "its V100 GPUs are supported up to CUDA 12.9, and torch is built for CUDA 13.0"
    assert (p3.undriven("12.9"), p3.undriven("13.0")) == (None, why)


def test_open_driver_is_for_turing_and_later() -> None:
    for chip in chips():
        assert (chip.driver == "open") == (float(chip.compute_capability) >= 7.5)


def test_fabric_manager_is_for_nvswitch_only() -> None:
    assert {entry.name for entry in catalog().instance_types if entry.nvswitch} == {
        *("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"),
        *("p6-b200.48xlarge", "p6-b300.48xlarge"),
    }


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        ("p4d.24xlarge", 4),
        ("p5.48xlarge", 32),
        ("p5en.48xlarge", 16),
        ("p6-b200.48xlarge", 8),
        ("g5.8xlarge", 1),
        ("g6e.24xlarge", 2),
    ],
)
def test_each_card_bears_an_efa_and_the_first_the_primary_too(name: str, cards: int) -> None:
    layout = [(one.card, one.device, one.type) for one in entry_of(name).interfaces(efa=True)]
    assert layout == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        *((card, 0, "efa-only") for card in range(1, cards)),
    ]


def test_p6_b300_has_no_efa_on_its_first_card() -> None:
    layout = [(one.card, one.device, one.type) for one in entry_of("p6-b300.48xlarge").interfaces(efa=True)]
    assert layout == [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))]


def test_a_type_without_efa_refuses_it() -> None:
    assert entry_of("g5.xlarge").efa_interfaces == 0
    with pytest.raises(AssertionError, match=r"g5\.xlarge bears no EFA"):
        entry_of("g5.xlarge").interfaces(efa=True)


def test_without_efa_there_is_one_interface() -> None:
    assert [one.type for one in entry_of("p5.48xlarge").interfaces(efa=False)] == ["interface"]
