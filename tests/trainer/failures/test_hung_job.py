"""The trainer itself, one rank of which stops answering in the midst of training."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.polling import eventually
from tests.trainer.conftest import Job


def ranks_of(agent: psutil.Process) -> dict[int, psutil.Process]:
    return {int(each.environ()["RANK"]): each for each in agent.children()}


def trained(lines: Path) -> float:
    """Seconds from the first step to the last one."""
    times = [json.loads(line)["time"] for line in lines.read_text().splitlines()[:-1]] if lines.exists() else []
    return times[-1] - times[0] if times else 0


def test_a_job_that_hangs_ends_and_names_who_is_missing(job: Callable[..., Job]) -> None:
    run = job("hung")
    seldom = {"checkpoint": {"every": 10**6}, "evaluation": {"every": 10**6}}
    run.configure(steps=10**6, timeout_seconds=8, **seldom)
    lines, said = run.folder / "metrics/metrics.jsonl", run.folder / "stderr"
    with said.open("w") as stderr:
        process = subprocess.Popen(run.command(2), env=run.environment, stdout=subprocess.DEVNULL, stderr=stderr)
    agent = psutil.Process(process.pid)
    ranks: dict[int, psutil.Process] = {}
    try:
        eventually(lambda: trained(lines) > 3 or process.poll() is not None, "some heartbeats of it", 100)
        assert process.poll() is None, said.read_text()
        ranks = ranks_of(agent)
        ranks[1].suspend()
        eventually(lambda: "\nhang: " in said.read_text(), "what the watch says", 60)
        ranks[1].resume()  # torchrun would end it by SIGKILL, after 30 s
        assert process.wait(timeout=60) == 1
    finally:
        for each in [*ranks.values(), *agent.children(recursive=True), agent] if process.poll() is None else []:
            each.kill()
        process.wait(timeout=20)
    (summary,) = [line for line in said.read_text().splitlines() if line.startswith("hang: ")]
    assert summary.startswith("hang: rank 0 in gloo:all_reduce ")
    assert (
        f"waiting for rank 1 ({os.uname().nodename}, local rank 1, CPU), which does not answer: last heard" in summary
    )
    assert "last heard of in training of step " in summary
    assert "exitcode  : 75 " in said.read_text()
