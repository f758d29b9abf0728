"""Parser of NCCL logs, with lines from public logs of real clusters."""

import pytest

from trainyard.node.health_check.nccl_log import Network, parse_network, slowest_network

P5 = """\
ip-10-1-2-3:6831:6840 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.18.0
ip-10-1-2-3:6831:6840 [0] NCCL INFO NET/OFI Using transport protocol RDMA (platform set)
ip-10-1-2-3:6831:6840 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
ip-10-1-2-3:6831:6840 [0] NCCL INFO NET/OFI NIC group 7 device #0 0000:a3:00.0
ip-10-1-2-3:6831:6840 [0] NCCL INFO Using network Libfabric
"""
P4D_OLD = """\
new-st-gpu-2:8802:8863 [5] NCCL INFO NET/OFI Using aws-ofi-nccl 1.5.0aws
new-st-gpu-2:8804:8862 [6] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
new-st-gpu-2:8804:8862 [6] NCCL INFO Using network AWS Libfabric
"""
ANCIENT = """\
test-nccl-efa-worker-1:22:22 [0] NCCL INFO NET/OFI Selected Provider is efa
test-nccl-efa-worker-1:22:22 [0] NCCL INFO Using network AWS Libfabric
"""
TIMED = "[2026-01-15 02:30:45] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)\n"
ONE_OF_FOUR = """\
llama-3-8b-node-0-0:188:585 [0] NCCL INFO NET/OFI Using transport protocol SENDRECV (platform set)
llama-3-8b-node-0-0:188:585 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)
llama-3-8b-node-0-0:188:585 [0] NCCL INFO Using network Libfabric
"""
BY_TCP = """\
ada6000-02:165062:165062 [0] NCCL INFO NET/IB : No device found.
ada6000-02:165062:165062 [0] NCCL INFO NET/Socket : Using [0]eth0:172.17.0.2<0>
ada6000-02:165062:165062 [0] NCCL INFO Using network Socket
"""
NO_EFA_DEVICE = """\
ip-172-31-3-90:1929:1937 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data
ip-172-31-3-90:1929:1937 [0] NCCL INFO Using network Socket
"""
TCP_PROVIDER = """\
h:1:1 [0] NCCL INFO NET/OFI Selected provider is tcp, fabric is 10.0.0.0/20 (found 1 nics)
h:1:1 [0] NCCL INFO Using network Libfabric
"""


@pytest.mark.parametrize(
    ("log", "network"),
    [
        (P5, Network("Libfabric", "efa", 32)),
        (P4D_OLD, Network("AWS Libfabric", "efa", 4)),
        (ANCIENT, Network("AWS Libfabric", "efa", None)),
        (TIMED, Network(None, "efa", 32)),
        (ONE_OF_FOUR, Network("Libfabric", "efa", 1)),
        (BY_TCP, Network("Socket")),
        (NO_EFA_DEVICE, Network("Socket")),
        (TCP_PROVIDER, Network("Libfabric", "tcp", 1)),
        ("", Network()),
    ],
    ids=["p5", "p4d", "no-count", "timed", "one", "socket", "no-device", "tcp-provider", "empty"],
)
def test_parse_network_reads_the_log_of_a_process(log: str, network: Network) -> None:
    assert parse_network(log) == network


def test_last_communicator_counts() -> None:
    assert parse_network(P5 + BY_TCP) == Network("Socket")


def test_slowest_network_of_the_processes_counts() -> None:
    assert slowest_network([P5, ONE_OF_FOUR, P5]) == Network("Libfabric", "efa", 1)
    assert slowest_network([P5, BY_TCP, P5]) == Network("Socket")
    assert slowest_network([P5, ""]) == Network("Libfabric", "efa", 32)
    assert slowest_network([]) == Network()
