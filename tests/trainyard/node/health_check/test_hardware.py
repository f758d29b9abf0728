"""Parser of nvidia-smi."""

import pytest

from trainyard.node.health_check.hardware import Driver, parse_driver


def test_parse_driver_returns_version_and_names() -> None:
    output = "580.126.09, NVIDIA A100-SXM4-40GB\n580.126.09, NVIDIA A100-SXM4-40GB\n"
    assert parse_driver(output) == Driver("580.126.09", ("NVIDIA A100-SXM4-40GB",) * 2)


def test_parse_driver_requires_a_gpu() -> None:
    with pytest.raises(ValueError, match="lists no GPU"):
        parse_driver("\n")
