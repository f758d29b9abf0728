"""A training job with a rank that is stopped or killed during training."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.polling import eventually
from tests.trainer.conftest import Job
from trainyard.models.failure_messages import PEER_LOST

pytestmark = pytest.mark.slow

RARE_CHECKPOINTS = {"checkpoint": {"interval_steps": 10**6}, "evaluation": {"interval_steps": 10**6}}


def ranks_of(agent: psutil.Process) -> dict[int, psutil.Process]:
    return {int(child.environ()["RANK"]): child for child in agent.children()}


def trained_seconds(lines: Path) -> float:
    """Seconds from the first to the last step."""
    times = [json.loads(line)["time"] for line in lines.read_text().splitlines()[:-1]] if lines.exists() else []
    return times[-1] - times[0] if times else 0


def run_and_disturb(run: Job, disturb: Callable[[psutil.Process], None], expected: str) -> str:
    """Apply `disturb` to one of two ranks during training, wait for `expected` in stderr, and return stderr."""
    lines, stderr_file = run.folder / "metrics/metrics.jsonl", run.folder / "stderr"
    with stderr_file.open("w") as stderr:
        process = subprocess.Popen(run.command(2), env=run.environment, stdout=subprocess.DEVNULL, stderr=stderr)
    agent = psutil.Process(process.pid)
    ranks: dict[int, psutil.Process] = {}
    try:
        eventually(lambda: trained_seconds(lines) > 3 or process.poll() is not None, "some heartbeats of it", 100)
        assert process.poll() is None, stderr_file.read_text()
        ranks = ranks_of(agent)
        disturb(ranks[1])
        eventually(lambda: expected in stderr_file.read_text(), "the message", 60)
        with suppress(psutil.NoSuchProcess):  # a killed rank may end between any check and the call
            ranks[1].resume()  # torchrun would kill a stopped rank after 30 s
        assert process.wait(timeout=60) == 1
    finally:
        for child in [*ranks.values(), *agent.children(recursive=True), agent] if process.poll() is None else []:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait(timeout=20)
    return stderr_file.read_text()


def test_hung_job_exits_and_names_the_missing_rank(job: Callable[..., Job]) -> None:
    run = job("hung")
    run.configure(steps=10**6, timeouts={"step_seconds": 8}, **RARE_CHECKPOINTS)
    stderr = run_and_disturb(run, psutil.Process.suspend, "\nhang: ")
    (summary,) = [line for line in stderr.splitlines() if line.startswith("hang: ")]
    assert summary.startswith("hang: rank 0 in gloo:all_reduce ")
    assert (
        f"waiting for rank 1 ({os.uname().nodename}, local rank 1, CPU), which does not respond: last heartbeat"
        in summary
    )
    assert re.search(r"last heartbeat in (training|data|checkpoint) of step ", summary)
    assert "exitcode  : 75 " in stderr


def test_killed_rank_is_reported_in_one_line(job: Callable[..., Job]) -> None:
    run = job("killed")
    run.configure(steps=10**6, **RARE_CHECKPOINTS)
    stderr = run_and_disturb(run, psutil.Process.kill, PEER_LOST)
    (line,) = [line for line in stderr.splitlines() if PEER_LOST in line]
    assert line.startswith(f"rank 0 ({os.uname().nodename}, local rank 0, CPU), after step ")
    assert "gloo" not in stderr
    assert "rank      : 1 (local_rank: 1)" in stderr  # torchrun's report, which the message mentions
    assert "Signal 9 (SIGKILL)" in stderr
