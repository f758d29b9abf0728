"""The catalog against AWS's own data, and the layout of interfaces."""

import gzip
import json
from pathlib import Path
from typing import Any

import moto
import pytest

from contract.catalog import InstanceType, catalog


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """DescribeInstanceTypes of the real AWS, as moto ships it."""
    file = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return found


@pytest.mark.parametrize("entry", catalog().instance_types, ids=lambda entry: entry.name)
def test_entry_is_what_aws_describes(entry: InstanceType, described: dict[str, Any]) -> None:
    aws = described[entry.name]
    network, gpus = aws["NetworkInfo"], aws.get("GpuInfo", {}).get("Gpus", [])
    assert entry.vcpus == aws["VCpuInfo"]["DefaultVCpus"]
    assert entry.memory_gib == aws["MemoryInfo"]["SizeInMiB"] / 1024
    assert (entry.gpu.count if entry.gpu else 0) == sum(gpu["Count"] for gpu in gpus)
    assert entry.efa_interfaces == network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert entry.cluster_placement == ("cluster" in aws["PlacementGroupInfo"]["SupportedStrategies"])
    cards = [
        (card["NetworkCardIndex"], card["MaximumNetworkInterfaces"], "efa-only" in card["InterfaceTypes"])
        for card in network["NetworkCards"]
    ]
    assert [(card.index, card.interfaces, card.efa) for card in entry.network_cards] == cards


def test_p4d_gets_one_plain_interface_and_four_efa_only() -> None:
    p4d = catalog().get("p4d.24xlarge")
    assert p4d is not None
    layout = [(one.card, one.device, one.type) for one in p4d.interfaces(efa=True)]
    assert layout == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        (1, 0, "efa-only"),
        (2, 0, "efa-only"),
        (3, 0, "efa-only"),
    ]


def test_without_efa_there_is_one_interface() -> None:
    p4d = catalog().get("p4d.24xlarge")
    assert p4d is not None
    assert [one.type for one in p4d.interfaces(efa=False)] == ["interface"]
