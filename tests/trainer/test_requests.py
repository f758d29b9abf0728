"""What is asked of a running job from outside."""

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.polling import eventually
from tests.trainer.conftest import Job
from trainer.loop import TERMINATED

Jobs = Callable[..., Job]


def ended(job: Job, after: int, number: signal.Signals) -> None:
    """The whole process group is told once so many steps are done; a checkpoint of the last step is there then."""
    process = subprocess.Popen(
        job.command(1), env=job.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        lines = job.folder / "metrics/metrics.jsonl"
        eventually(lambda: lines.exists() and lines.read_text().count("\n") >= after, "the steps")
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == TERMINATED, said.decode()
    assert b"Traceback" not in said
    (saved,) = (job.folder / "checkpoints").iterdir()
    assert (saved / ".metadata").exists()
    assert int(saved.name.removeprefix("step-")) == len(job.lines())


@pytest.mark.parametrize(
    ("number", "data"), [(signal.SIGTERM, {}), (signal.SIGINT, {}), (signal.SIGTERM, {"workers": 2})]
)
def test_the_end_saves_a_checkpoint_first(job: Jobs, number: signal.Signals, data: dict[str, Any]) -> None:
    """By SIGTERM and by Ctrl-C; also where processes prepare the samples, which hear of it too."""
    found = job("ended")
    found.configure(steps=100_000, checkpoint={"every": 100_000}, data=data)
    ended(found, 4, number)


def test_the_end_does_not_wait_for_a_held_out_loss(job: Jobs) -> None:
    found = job("evaluating")
    found.configure(steps=100_000, checkpoint={"every": 100_000}, evaluation={"every": 2, "batches": 1_000_000})
    ended(found, 1, signal.SIGTERM)
    assert len(found.lines()) == 2
