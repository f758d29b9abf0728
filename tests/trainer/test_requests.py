"""What is asked of a running job from outside."""

import signal
import subprocess
from collections.abc import Callable

from tests.polling import eventually
from tests.trainer.conftest import Job
from trainer.loop import TERMINATED


def test_sigterm_saves_a_checkpoint_and_ends_the_job(job: Callable[..., Job]) -> None:
    found = job("terminated")
    found.configure(steps=100_000, checkpoint={"every": 100_000})
    process = subprocess.Popen(found.command(1), env=found.environment, stdout=subprocess.DEVNULL)
    try:
        lines = found.folder / "metrics/metrics.jsonl"
        eventually(lambda: lines.exists() and lines.read_text().count("\n") > 3, "the fourth step")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == TERMINATED
    finally:
        process.kill()
        process.wait()
    (saved,) = (found.folder / "checkpoints").iterdir()
    assert (saved / ".metadata").exists()
    assert int(saved.name.removeprefix("step-")) == len(found.lines())
