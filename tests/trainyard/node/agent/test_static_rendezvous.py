"""torchrun of several nodes with its static rendezvous, on loopback addresses."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import PrefixStore, TCPStore

from tests.polling import eventually
from trainyard.models.run import Master
from trainyard.node.agent.torchrun import torchrun_command

# Tests in other processes use other ports.
PORTS = iter(range(20000 + os.getpid() % 9000, 30000))
# Each rank writes its rank, then all ranks add their ranks. An argument is the node whose rank fails instead.
JOB = """
import os, pathlib, sys
folder, node = pathlib.Path(sys.argv[1]), os.environ["TRAINYARD_NODE"]
(folder / f"{node}.started").write_text(os.environ["RANK"])
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
if sys.argv[2:] == [node]:
    os._exit(3)
dist.barrier()
(folder / f"{node}.total").write_text(str(total.item()))
dist.destroy_process_group()
"""


class Attempt:
    """An attempt of nodes whose agents start torchrun one after the other."""

    def __init__(self, folder: Path, nodes: tuple[str, ...], *arguments: str, join_seconds: float = 60.0) -> None:
        folder.mkdir()
        self.folder, self.nodes = folder, nodes
        self._arguments, self._join_seconds = arguments, join_seconds
        self.master = Master(address="127.77.5.2", port=next(PORTS))
        self._job = folder / "job.py"
        self._job.write_text(JOB)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *nodes: str) -> None:
        for node in nodes:
            command = torchrun_command(
                python=Path(sys.executable),
                nodes=self.nodes,
                instance=node,
                master=self.master,
                rendezvous="run-1",
                processes=1,
                job=[str(self._job), str(self.folder), *self._arguments],
                logs=self.folder / f"{node}-logs",
                join_seconds=self._join_seconds,
            )
            variables = {"TRAINYARD_NODE": node, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            with (self.folder / f"{node}.log").open("wb") as log:
                self.processes[node] = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)

    def exit_codes(self) -> dict[str, int]:
        return {node: process.wait(120) for node, process in self.processes.items()}

    def read(self, kind: str) -> dict[str, str]:
        return {file.stem: file.read_text() for file in self.folder.glob(f"*.{kind}")}

    def output(self, node: str) -> str:
        return (self.folder / f"{node}.log").read_text()


@pytest.fixture
def attempts() -> Iterator[list[Attempt]]:
    """Attempts whose processes are killed after the test."""
    created: list[Attempt] = []
    yield created
    for attempt in created:
        for process in attempt.processes.values():
            process.kill()
            process.wait()


@pytest.mark.slow
def test_ranks_follow_the_order_of_the_nodes(tmp_path: Path, attempts: list[Attempt]) -> None:
    attempt = Attempt(tmp_path / "1", ("i-c", "i-a", "i-b"))
    attempts.append(attempt)
    attempt.start("i-a", "i-b", "i-c")
    assert set(attempt.exit_codes().values()) == {0}
    assert attempt.read("started") == {"i-c": "0", "i-a": "1", "i-b": "2"}
    assert attempt.read("total") == {"i-c": "3", "i-a": "3", "i-b": "3"}


@pytest.mark.slow
def test_master_may_start_after_the_other_nodes(tmp_path: Path, attempts: list[Attempt]) -> None:
    attempt = Attempt(tmp_path / "1", ("i-a", "i-b"))
    attempts.append(attempt)
    attempt.start("i-b")
    eventually((attempt.folder / "i-b-logs").exists, "the start of the second node")
    attempt.start("i-a")
    assert attempt.exit_codes() == {"i-a": 0, "i-b": 0}


@pytest.mark.slow
def test_next_attempt_starts_while_the_previous_master_listens(tmp_path: Path, attempts: list[Attempt]) -> None:
    """The agent of a node may not have read the new request yet."""
    for number in (1, 2):
        attempts.append(Attempt(tmp_path / str(number), ("i-a", "i-b")))
    attempts[0].start("i-a")
    attempts[1].start("i-a", "i-b")
    assert attempts[1].exit_codes() == {"i-a": 0, "i-b": 0}
    assert attempts[0].processes["i-a"].poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["i-a", "i-b"])
def test_node_that_does_not_join_ends_the_attempt(tmp_path: Path, attempts: list[Attempt], missing: str) -> None:
    attempt = Attempt(tmp_path / "1", ("i-a", "i-b"), join_seconds=2.0)
    attempts.append(attempt)
    present = "i-b" if missing == "i-a" else "i-a"
    attempt.start(present)
    started_at = time.monotonic()
    assert attempt.exit_codes() == {present: 1}
    assert time.monotonic() - started_at < 60
    assert "timed out" in attempt.output(present).lower()
    assert attempt.read("started") == {}


@pytest.mark.slow
def test_failure_on_the_master_ends_the_other_nodes(tmp_path: Path, attempts: list[Attempt]) -> None:
    attempt = Attempt(tmp_path / "1", ("i-a", "i-b"), "i-a")
    attempts.append(attempt)
    attempt.start("i-a", "i-b")
    assert attempt.exit_codes() == {"i-a": 1, "i-b": 1}


class _Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._file,)


@pytest.mark.slow
def test_objects_of_another_process_in_the_store_are_not_unpickled(tmp_path: Path, attempts: list[Attempt]) -> None:
    """The store of the first node requires no secret: torchrun reads JSON from it (torch 2.15, agent/server/api.py)."""
    attempt = Attempt(tmp_path / "1", ("i-a", "i-b"))
    attempts.append(attempt)
    attempt.start("i-a")
    server = TCPStore(attempt.master.address, attempt.master.port, 2, timeout=timedelta(seconds=60))
    payload, executed = tmp_path / "payload", tmp_path / "executed"
    pickle.loads(pickle.dumps(_Payload(payload)))
    assert payload.exists()
    store = PrefixStore("run-1", server)
    store.set("torchelastic/role_info/1", pickle.dumps(_Payload(executed), protocol=0).decode())
    assert attempt.exit_codes() == {"i-a": 1}
    assert "JSONDecodeError" in attempt.output("i-a")
    assert not executed.exists()
