"""The program itself, with gloo: a check that goes well, and one to which a node does not come."""

import os
import subprocess
import sys
import time
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from trainyard.node.health_check.notes import DONE, PEERS, STORE, Notes, read_notes

ROOT = Path(__file__).parents[4]


def start(folder: Path, rank: int, port: int, *, world: int, each: int, seconds: float) -> "subprocess.Popen[bytes]":
    """One process of it, with the variables that torchrun gives."""
    node = rank // each
    (folder / f"node-{node}").mkdir(exist_ok=True)
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % each, "LOCAL_WORLD_SIZE": each}
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
    given = ["--folder", str(folder / f"node-{node}"), "--instance", f"i-{node}", "--seconds", f"{seconds:g}"]
    given += ["--store", f"127.0.0.1:{port}", "--check", "run-check-1"]
    return subprocess.Popen(
        [sys.executable, "-m", "trainyard.node.health_check", *given],
        cwd=ROOT,
        env=os.environ | {name: str(value) for name, value in (place | variables).items()},
        stderr=subprocess.DEVNULL,
    )


def run(folder: Path, *, ranks: range, world: int, each: int, seconds: float) -> dict[int, list[Notes]]:
    """Node -> what its processes left."""
    head = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [start(folder, rank, head.port, world=world, each=each, seconds=seconds) for rank in ranks]
    try:
        for process in processes:
            process.wait(120)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {node: read_notes(folder / f"node-{node}") for node in sorted({rank // each for rank in ranks})}


def test_all_measure_themselves(tmp_path: Path) -> None:
    left = run(tmp_path, ranks=range(2), world=2, each=1, seconds=60)
    for node in (0, 1):
        (notes,) = left[node]
        assert notes.stage == DONE
        assert notes.absent == []
        assert notes.torch
        assert notes.matmul_tflops
        assert notes.network_gbs
        assert notes.nvlink_gbs is None  # it has no neighbour


def test_a_store_that_can_not_be_reached_ends_the_process_there(tmp_path: Path) -> None:
    process = start(tmp_path, 0, 1, world=2, each=1, seconds=4)
    assert process.wait(60) == 1
    (notes,) = read_notes(tmp_path / "node-0")
    assert (notes.stage, notes.absent) == (STORE, [])


def test_who_waits_in_vain_names_the_node(tmp_path: Path) -> None:
    """A share of the time, not all of it: the rest is for the words."""
    began = time.monotonic()
    left = run(tmp_path, ranks=range(2), world=4, each=2, seconds=16)
    assert time.monotonic() - began < 60
    for notes in left[0]:
        assert notes.stage == PEERS
        assert notes.absent == ["the node of ranks 2 to 3"]
        assert notes.nvlink_gbs  # what it could measure without the other
