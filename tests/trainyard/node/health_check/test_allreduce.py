"""Formula of the bus bandwidth."""

import pytest

from trainyard.node.health_check.allreduce import bus_bandwidth


def test_bus_bandwidth_equals_nccl_tests() -> None:
    """Output of nccl-tests: 1 GiB over two GPUs in 9306.7 us is 115.37 GB/s; over eight it would be 201.9."""
    assert bus_bandwidth(2, 1 << 30, 9306.7e-6) == pytest.approx(115.37, abs=0.01)
    assert bus_bandwidth(8, 1 << 30, 9306.7e-6) == pytest.approx(201.9, abs=0.01)
