"""Processes of a health check with gloo: all nodes present, one node missing, and no store on the first node."""

import os
import subprocess
import sys
import time
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from tests.polling import eventually
from trainyard.node.agent.health_check_files import read_reports
from trainyard.node.health_check.process_report import ProcessReport
from trainyard.node.health_check.stages import DONE, PEERS, STORE

ROOT = Path(__file__).parents[4]


def start(
    folder: Path, rank: int, port: int, *, world_size: int, processes_per_node: int, timeout_seconds: float
) -> "subprocess.Popen[bytes]":
    """Start one process with the variables that torchrun sets."""
    node = rank // processes_per_node
    (folder / f"node-{node}").mkdir(exist_ok=True)
    ranks_of_process = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": rank % processes_per_node,
        "LOCAL_WORLD_SIZE": processes_per_node,
    }
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
    arguments = [
        "--folder",
        str(folder / f"node-{node}"),
        "--instance",
        f"i-{node}",
        "--timeout-seconds",
        f"{timeout_seconds:g}",
    ]
    arguments += ["--first-node", "i-0"]
    return subprocess.Popen(
        [sys.executable, "-m", "trainyard.node.health_check", *arguments],
        cwd=ROOT,
        env=os.environ | {name: str(value) for name, value in (ranks_of_process | variables).items()},
        stderr=subprocess.DEVNULL,
    )


def run(
    folder: Path, *, ranks: range, world_size: int, processes_per_node: int, timeout_seconds: float
) -> dict[int, list[ProcessReport]]:
    """Node -> reports of its processes."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        start(
            folder,
            rank,
            store.port,
            world_size=world_size,
            processes_per_node=processes_per_node,
            timeout_seconds=timeout_seconds,
        )
        for rank in ranks
    ]
    try:
        for process in processes:
            process.wait(120)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {
        node: read_reports(folder / f"node-{node}", processes_per_node)
        for node in sorted({rank // processes_per_node for rank in ranks})
    }


def test_all_nodes_complete_and_measure(tmp_path: Path) -> None:
    reports = run(tmp_path, ranks=range(2), world_size=2, processes_per_node=1, timeout_seconds=60)
    for node in (0, 1):
        (report,) = reports[node]
        assert report.stage == DONE
        assert report.missing_peers == []
        assert report.torch
        assert report.matmul_tflops
        assert report.network_gbs
        assert report.nvlink_gbs is None  # one process per node


def test_store_that_closes_makes_the_first_node_missing(tmp_path: Path) -> None:
    """torchrun on the first node ends with the first failure of a process, and its store with it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    process = start(tmp_path, 1, store.port, world_size=2, processes_per_node=1, timeout_seconds=120)
    reports = tmp_path / "node-1"
    eventually(lambda: [report.stage for report in read_reports(reports, 1)] == [PEERS], "the wait for all nodes")
    del store
    assert process.wait(60) == 1
    (report,) = read_reports(reports, 1)
    assert (report.stage, report.missing_peers) == (PEERS, ["i-0"])


def test_first_node_without_store_is_missing(tmp_path: Path) -> None:
    """The stages within a node do not need it."""
    processes = [start(tmp_path, rank, 1, world_size=4, processes_per_node=2, timeout_seconds=16) for rank in (2, 3)]
    for process in processes:
        assert process.wait(60) == 1
    reports = read_reports(tmp_path / "node-1", 2)
    assert [(report.stage, report.missing_peers) for report in reports] == [(STORE, ["i-0"])] * 2
    assert all(report.nvlink_gbs for report in reports)


def test_waiting_process_names_the_missing_node(tmp_path: Path) -> None:
    """Processes wait for a share of the timeout, so that they can report the missing node."""
    started_at = time.monotonic()
    reports = run(tmp_path, ranks=range(2), world_size=4, processes_per_node=2, timeout_seconds=16)
    assert time.monotonic() - started_at < 60
    for report in reports[0]:
        assert report.stage == PEERS
        assert report.missing_peers == ["the node of ranks 2 to 3"]
        assert report.nvlink_gbs  # does not need the other node
