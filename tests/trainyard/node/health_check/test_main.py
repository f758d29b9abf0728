"""Processes of a health check with gloo: all nodes present, and one node missing."""

import os
import subprocess
import sys
import time
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from trainyard.node.health_check.process_report import ProcessReport, read_reports
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
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
    arguments = [
        "--folder",
        str(folder / f"node-{node}"),
        "--instance",
        f"i-{node}",
        "--timeout-seconds",
        f"{timeout_seconds:g}",
    ]
    arguments += ["--store", f"127.0.0.1:{port}", "--rendezvous", "run-check-1"]
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
    head = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        start(
            folder,
            rank,
            head.port,
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
        node: read_reports(folder / f"node-{node}") for node in sorted({rank // processes_per_node for rank in ranks})
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


def test_unreachable_store_ends_the_process_in_that_stage(tmp_path: Path) -> None:
    process = start(tmp_path, 0, 1, world_size=2, processes_per_node=1, timeout_seconds=4)
    assert process.wait(60) == 1
    (report,) = read_reports(tmp_path / "node-0")
    assert (report.stage, report.missing_peers) == (STORE, [])


def test_waiting_process_names_the_missing_node(tmp_path: Path) -> None:
    """Processes wait for a share of the timeout, so that they can report the missing node."""
    started_at = time.monotonic()
    reports = run(tmp_path, ranks=range(2), world_size=4, processes_per_node=2, timeout_seconds=16)
    assert time.monotonic() - started_at < 60
    for report in reports[0]:
        assert report.stage == PEERS
        assert report.missing_peers == ["the node of ranks 2 to 3"]
        assert report.nvlink_gbs  # does not need the other node
