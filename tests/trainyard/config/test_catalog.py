"""The catalog against AWS's own data and the pinned torch, and the layout of interfaces."""

import gzip
import json
from pathlib import Path
from typing import Any

import moto
import pytest
import torch

from trainyard.config.catalog import TORCH_CUDA, InstanceType, catalog
from trainyard.config.gpus import GpuModel, gpu_models

ABSENT = {"p3.2xlarge", "p3.8xlarge", "p3.16xlarge"}  # absent from moto's data


def entry_of(name: str) -> InstanceType:
    entry = catalog().get(name)
    assert entry is not None
    return entry


def layout_of(name: str) -> list[tuple[int, int, str]]:
    """Card, device and type of each interface with EFA."""
    return [(each.card, each.device, each.type) for each in entry_of(name).interfaces(efa=True)]


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """DescribeInstanceTypes of the real AWS, as moto ships it."""
    file = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
    types: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return types


def test_only_types_absent_from_moto_are_unchecked(described: dict[str, Any]) -> None:
    assert {entry.name for entry in catalog().instance_types} - described.keys() == ABSENT


@pytest.mark.parametrize(
    "entry", [entry for entry in catalog().instance_types if entry.name not in ABSENT], ids=lambda entry: entry.name
)
def test_entry_equals_describe_instance_types(entry: InstanceType, described: dict[str, Any]) -> None:
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
def test_entry_is_consistent(entry: InstanceType) -> None:
    assert entry.on_demand_usd or entry.capacity_block_usd
    if entry.gpu:
        assert entry.gpu.specs.model == entry.gpu.model
        assert (entry.gpu.interconnect is None) == (entry.gpu.count == 1)
    for card in entry.network_cards:
        used = sum(interface.card == card.index for interface in entry.interfaces(entry.efa_interfaces > 0))
        assert used <= card.interfaces


def test_pinned_torch_is_built_for_the_catalogs_cuda_version() -> None:
    if torch.version.cuda is None:
        pytest.skip("this torch is a CPU build")
    assert torch.version.cuda == TORCH_CUDA


@pytest.mark.parametrize("gpu_model", gpu_models(), ids=lambda entry: entry.model)
def test_torch_has_code_for_supported_gpus(gpu_model: GpuModel) -> None:
    if torch.version.cuda is None:
        pytest.skip("this torch is a CPU build")
    major, minor = gpu_model.compute_capability.split(".")
    # Code for a capability runs on every later minor of it (CUDA programming guide, "Binary Compatibility").
    flags = str(torch._C._cuda_getArchFlags()).split()
    has_code = any(flag[3:-1] == major and flag[-1] <= minor for flag in flags)
    entry = next(entry for entry in catalog().instance_types if entry.gpu and entry.gpu.model == gpu_model.model)
    assert has_code == (entry.unsupported_by_cuda() is None)


def test_v100_is_unsupported_from_cuda_13() -> None:
    p3 = entry_of("p3.16xlarge")
    reason = "CUDA supports its V100 GPUs up to 12.9, and torch is built for CUDA 13.0"
    assert (p3.unsupported_by_cuda("12.9"), p3.unsupported_by_cuda("13.0")) == (None, reason)


def test_open_driver_is_for_turing_and_later() -> None:
    for gpu_model in gpu_models():
        assert (gpu_model.driver == "open") == (float(gpu_model.compute_capability) >= 7.5)


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
def test_each_card_has_an_efa_interface_and_the_first_the_primary(name: str, cards: int) -> None:
    assert layout_of(name) == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        *((card, 0, "efa-only") for card in range(1, cards)),
    ]


def test_p6_b300_has_no_efa_on_its_first_card() -> None:
    layout = [
        (interface.card, interface.device, interface.type)
        for interface in entry_of("p6-b300.48xlarge").interfaces(efa=True)
    ]
    assert layout == [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))]


def test_type_without_efa_refuses_efa_interfaces() -> None:
    assert entry_of("g5.xlarge").efa_interfaces == 0
    with pytest.raises(AssertionError, match=r"g5\.xlarge does not support EFA"):
        entry_of("g5.xlarge").interfaces(efa=True)


def test_without_efa_only_the_primary_interface_exists() -> None:
    assert [interface.type for interface in entry_of("p5.48xlarge").interfaces(efa=False)] == ["interface"]
