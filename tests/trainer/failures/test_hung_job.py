"""The trainer itself, one rank of which stops answering, or goes away, in the midst of training."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.polling import eventually
from tests.trainer.conftest import Job

SELDOM = {"checkpoint": {"every": 10**6}, "evaluation": {"every": 10**6}}


def ranks_of(agent: psutil.Process) -> dict[int, psutil.Process]:
    return {int(each.environ()["RANK"]): each for each in agent.children()}


def trained(lines: Path) -> float:
    """Seconds from the first step to the last one."""
    times = [json.loads(line)["time"] for line in lines.read_text().splitlines()[:-1]] if lines.exists() else []
    return times[-1] - times[0] if times else 0


def struck(run: Job, strike: Callable[[psutil.Process], None], sign: str) -> str:
    """What a job of two ranks says, one of which is struck in the midst of training, when it has ended: `sign`, too."""
    lines, said = run.folder / "metrics/metrics.jsonl", run.folder / "stderr"
    with said.open("w") as stderr:
        process = subprocess.Popen(run.command(2), env=run.environment, stdout=subprocess.DEVNULL, stderr=stderr)
    agent = psutil.Process(process.pid)
    ranks: dict[int, psutil.Process] = {}
    try:
        eventually(lambda: trained(lines) > 3 or process.poll() is not None, "some heartbeats of it", 100)
        assert process.poll() is None, said.read_text()
        ranks = ranks_of(agent)
        strike(ranks[1])
        eventually(lambda: sign in said.read_text(), "what the ranks say", 60)
        if ranks[1].is_running():
            ranks[1].resume()  # torchrun would end it by SIGKILL, after 30 s
        assert process.wait(timeout=60) == 1
    finally:
        for each in [*ranks.values(), *agent.children(recursive=True), agent] if process.poll() is None else []:
            each.kill()
        process.wait(timeout=20)
    return said.read_text()


def test_a_job_that_hangs_ends_and_names_who_is_missing(job: Callable[..., Job]) -> None:
    run = job("hung")
    run.configure(steps=10**6, timeout_seconds=8, **SELDOM)
    said = struck(run, psutil.Process.suspend, "\nhang: ")
    (summary,) = [line for line in said.splitlines() if line.startswith("hang: ")]
    assert summary.startswith("hang: rank 0 in gloo:all_reduce ")
    assert (
        f"waiting for rank 1 ({os.uname().nodename}, local rank 1, CPU), which does not answer: last heard" in summary
    )
    assert "last heard of in training of step " in summary
    assert "exitcode  : 75 " in said


def test_a_rank_that_is_killed_is_missed_in_one_line(job: Callable[..., Job]) -> None:
    run = job("killed")
    run.configure(steps=10**6, **SELDOM)
    said = struck(run, psutil.Process.kill, "has gone away")
    (line,) = [line for line in said.splitlines() if "has gone away" in line]
    assert line.startswith(f"rank 0 ({os.uname().nodename}, local rank 0, CPU), after step ")
    assert "gloo" not in said
    assert "rank      : 1 (local_rank: 1)" in said  # torchrun's report, to which the line points
    assert "Signal 9 (SIGKILL)" in said
