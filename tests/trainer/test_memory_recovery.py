"""Two nodes with two ranks each: a killed rank, a replaced node, and the next attempt from host memory."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.polling import eventually
from tests.trainer.conftest import ROOT, Job

pytestmark = pytest.mark.slow

STEPS = 60
# The last step has the only checkpoint.
CHECKPOINT = {"interval_steps": 10_000, "memory_interval_steps": 1}


class Cluster:
    """A job on two nodes, each with its own memory."""

    def __init__(self, job: Job) -> None:
        self.job = job
        job.configure(steps=STEPS, batch_size=8, checkpoint=CHECKPOINT, evaluation={"interval_steps": STEPS})

    def start(self, attempt: int) -> list["subprocess.Popen[bytes]"]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        return [self._start_node(node, attempt, port) for node in range(2)]

    def _start_node(self, node: int, attempt: int, port: int) -> "subprocess.Popen[bytes]":
        options = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", "--rdzv-backend=static"]
        options += ["--master-addr=127.0.0.1", f"--master-port={port}", "--monitor-interval=0.1", "--max-restarts=0"]
        options += [f"--rdzv-id={attempt}", f"--log-dir={self.job.folder}/logs-{attempt}", "--redirects=3"]
        memory = {"TRAINYARD_MEMORY": str(self.memory(node)), "TRAINYARD_ATTEMPT": str(attempt)}
        command = [sys.executable, "-m", "trainer.launcher", *options, *self.job.command(1)[1:]]
        with (self.job.folder / f"launcher-{attempt}-{node}.log").open("wb") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self.job.environment | memory, stdout=log, stderr=log)

    def memory(self, node: int) -> Path:
        return self.job.folder / f"memory-{node}"

    def lines(self, attempt: int) -> list[dict[str, Any]]:
        file = self.job.folder / "metrics/metrics.jsonl"
        return [line for line in self.job.lines() if line["attempt"] == attempt] if file.exists() else []

    def run(self, attempt: int) -> None:
        """Run an attempt to its end."""
        codes = [process.wait(100) for process in self.start(attempt)]
        assert codes == [0, 0], self.output(attempt)

    def run_until_killed(self, attempt: int, step: int, rank: int) -> None:
        """Kill a rank when an attempt has reached a step, and wait for the end of the others."""
        processes = self.start(attempt)
        eventually(lambda: any(line["step"] == step for line in self.lines(attempt)), f"step {step}", 100)
        ranks = psutil.Process(processes[rank // 2].pid).children()
        logs = {int(Path(f"/proc/{each.pid}/fd/2").readlink().parent.name): each for each in ranks}
        logs[rank % 2].kill()
        assert [process.wait(60) for process in processes] == [1, 1]

    def output(self, attempt: int) -> str:
        files = sorted(self.job.folder.glob(f"launcher-{attempt}-*.log"))
        files += sorted(self.job.folder.glob(f"logs-{attempt}/*/attempt_0/*/*.log"))
        return "\n".join(f"== {file}\n{file.read_text()}" for file in files)


@pytest.fixture(scope="module")
def undisturbed(job: Callable[..., Job]) -> list[float]:
    """The losses of all steps without a fault."""
    cluster = Cluster(job("undisturbed"))
    cluster.run(1)
    return [line["loss"] for line in cluster.lines(1)]


@pytest.mark.parametrize("lost_node", [None, 1])
def test_few_steps_are_repeated_and_losses_are_equal(
    job: Callable[..., Job], undisturbed: list[float], lost_node: int | None
) -> None:
    cluster = Cluster(job("disturbed"))
    cluster.run_until_killed(1, step=8, rank=3)
    if lost_node is not None:
        shutil.rmtree(cluster.memory(lost_node))
    cluster.run(2)
    assert "resumed from memory:step-" in cluster.output(2)
    before, after = cluster.lines(1), cluster.lines(2)
    # Two if the copy of the step before was not complete, as on a busy machine.
    assert before[-1]["step"] + 1 - after[0]["step"] in (0, 1, 2)
    assert after[-1]["step"] == STEPS
    for line in [*before, *after]:
        assert line["loss"] == undisturbed[line["step"] - 1], line["step"]
