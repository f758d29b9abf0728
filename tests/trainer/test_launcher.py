"""torchrun with forked ranks: the same results, logs and report of failures as torchrun, also from the standby."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.polling import eventually
from tests.trainer.conftest import Job
from trainyard.node.agent.rank_failures import parse_failures, rank_log_folders

pytestmark = pytest.mark.slow

STEPS = 4
SETTINGS = {"steps": STEPS, "checkpoint": {"interval_steps": 2}, "evaluation": {"interval_steps": 4}}
# Before the trainer starts, each rank reports what it has inherited.
PROBE = """
import os, stat, sys, torch
from trainer import launcher
import trainer.__main__
run = trainer.__main__.main
def main():
    descriptors = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    sockets = [name for name in descriptors if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode)]
    print("sockets", len(sockets), "bad fork", torch.cuda._is_in_bad_fork(), "secret", os.environ.get("SECRET"))
    return run()
trainer.__main__.main = main
launcher.main()
"""


def start(job: Job, *arguments: str, program: tuple[str, ...] = ("-m", "trainer.launcher")) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        env=job.environment,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def torchrun_arguments(job: Job) -> list[str]:
    logs = [f"--log-dir={job.folder}/logs", "--redirects=3"]
    return ["--standalone", "--nproc-per-node=2", "--monitor-interval=0.1", *logs, *job.command(1)[1:]]


def rank_logs(job: Job) -> dict[int, Path]:
    return rank_log_folders(job.folder / "logs", 8)


@pytest.fixture
def small(job: Callable[..., Job]) -> Job:
    created = job("launched")
    created.configure(batch_size=4, **SETTINGS)
    return created


def test_forked_ranks_have_the_losses_of_torchrun(small: Job, job: Callable[..., Job]) -> None:
    process = start(small, *torchrun_arguments(small), program=("-c", PROBE))
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    other = job("torchrun")
    other.configure(batch_size=4, **SETTINGS)
    assert other.run(2).returncode == 0
    assert [line["loss"] for line in small.lines()] == [line["loss"] for line in other.lines()]
    logs = rank_logs(small)
    assert sorted(logs) == [0, 1]
    for folder in logs.values():
        assert "sockets 0 bad fork False" in (folder / "stdout.log").read_text()


def test_standby_starts_with_the_arguments_and_variables_on_its_stdin(small: Job) -> None:
    process = start(small, "--standby", program=("-c", PROBE))
    line = json.dumps({"arguments": torchrun_arguments(small), "variables": {"SECRET": "given at the start"}})
    output, _ = process.communicate(f"{line}\n", timeout=100)
    assert process.returncode == 0, output
    assert len(small.lines()) == STEPS
    assert "secret given at the start" in (rank_logs(small)[1] / "stdout.log").read_text()


def test_standby_ends_with_its_stdin(small: Job) -> None:
    process = start(small, "--standby")
    output, _ = process.communicate("", timeout=100)
    assert (process.returncode, rank_logs(small)) == (0, {}), output


def test_killed_rank_is_reported_as_by_torchrun(small: Job) -> None:
    small.configure(batch_size=4, **SETTINGS | {"steps": 10_000})
    process = start(small, *torchrun_arguments(small))
    metrics = small.folder / "metrics/metrics.jsonl"
    eventually(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, "the second step", 60)
    ranks = {
        int(Path(f"/proc/{child.pid}/fd/2").readlink().parent.name): child
        for child in psutil.Process(process.pid).children()
    }
    ranks[1].send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    failures = {failure.rank: failure for failure in parse_failures(output, small.folder / "logs", 0.0, 8)}
    assert failures[1].message == "ended by signal 9"
    assert not any(child.is_running() for child in ranks.values())


def test_exception_of_a_rank_is_reported_with_its_traceback(small: Job) -> None:
    crash = PROBE.replace("return run()", "raise ArithmeticError('no such number')")
    process = start(small, *torchrun_arguments(small), program=("-c", crash))
    output, _ = process.communicate(timeout=100)
    failures = parse_failures(output, small.folder / "logs", 0.0, 8)
    causes = [each for each in failures if each.exitcode == 1]
    assert {each.exitcode for each in failures} <= {1, -signal.SIGTERM}
    assert causes[0].message == "ArithmeticError: no such number"
    assert "Traceback" in causes[0].traceback
