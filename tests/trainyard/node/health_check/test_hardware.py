"""What nvidia-smi tells."""

import pytest

from trainyard.node.health_check.hardware import Driver, driver_in


def test_driver_and_names() -> None:
    answer = "580.126.09, NVIDIA A100-SXM4-40GB\n580.126.09, NVIDIA A100-SXM4-40GB\n"
    assert driver_in(answer) == Driver("580.126.09", ("NVIDIA A100-SXM4-40GB",) * 2)


def test_no_gpu_is_an_error() -> None:
    with pytest.raises(ValueError, match="tells of no GPU"):
        driver_in("\n")
