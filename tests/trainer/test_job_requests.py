"""Signals that request the termination of a running job."""

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.polling import eventually
from tests.trainer.conftest import Job
from trainer.loop import EXIT_TERMINATED

pytestmark = pytest.mark.slow

Jobs = Callable[..., Job]


def run_and_terminate(job: Job, steps: int, number: signal.Signals) -> None:
    """Send a signal to the process group after some steps, and check that the last step has a checkpoint."""
    process = subprocess.Popen(
        job.command(1), env=job.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        lines = job.folder / "metrics/metrics.jsonl"
        eventually(lambda: lines.exists() and lines.read_text().count("\n") >= steps, "the steps")
        os.killpg(process.pid, number)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == EXIT_TERMINATED, stderr.decode()
    assert b"Traceback" not in stderr
    (saved,) = (job.folder / "checkpoints").iterdir()
    assert (saved / ".metadata").exists()
    assert int(saved.name.removeprefix("step-")) == len(job.lines())


@pytest.mark.parametrize(
    ("number", "data"), [(signal.SIGTERM, {}), (signal.SIGINT, {}), (signal.SIGTERM, {"workers": 2})]
)
def test_termination_saves_a_checkpoint(job: Jobs, number: signal.Signals, data: dict[str, Any]) -> None:
    """By SIGTERM and by Ctrl-C; also with data workers, which receive the signal too."""
    run = job("terminated")
    run.configure(steps=100_000, checkpoint={"interval_steps": 100_000}, data=data)
    run_and_terminate(run, 4, number)


def test_termination_interrupts_validation(job: Jobs) -> None:
    run = job("evaluating")
    run.configure(
        steps=100_000, checkpoint={"interval_steps": 100_000}, evaluation={"interval_steps": 2, "batches": 1_000_000}
    )
    run_and_terminate(run, 1, signal.SIGTERM)
    assert len(run.lines()) == 2
