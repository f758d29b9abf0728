"""A supervised job of the tests: its processes, and the steps that it has completed."""

import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.polling import eventually
from tests.trainer.conftest import Job


class SupervisedJob:
    """A job whose ranks the supervisor runs. Use it as a context manager."""

    def __init__(self, job: Job, processes: int) -> None:
        self._job, self._logs = job, job.folder / "logs"
        self._metrics = job.folder / "metrics/metrics.jsonl"
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._port = server.getsockname()[1]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "trainer.recovery.supervisor", f"--nproc-per-node={processes}"),
                *(f"--master-port={self._port}", "--rdzv-id=job-1", f"--log-dir={self._logs}"),
                *("-m", "trainer", "--config", str(job.config)),
            ],
            env=job.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "SupervisedJob":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def step(self) -> int:
        """The last step with metrics."""
        lines = self._metrics.read_text().splitlines() if self._metrics.exists() else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def wait_for_step(self, step: int, timeout_seconds: float = 90.0) -> None:
        eventually(lambda: self.step() >= step or self.process.poll() is not None, f"step {step}", timeout_seconds)
        assert self.step() >= step, self.rank_log(0, "stderr")

    def ranks(self) -> dict[int, int]:
        """Local rank -> process id, from the process that has the rank's log open as its output."""
        ranks: dict[int, int] = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(OSError):  # it has ended
                output = Path(f"/proc/{child.pid}/fd/1").readlink()
                if output.is_relative_to(self._logs):
                    ranks[int(output.parent.name)] = child.pid
        return ranks

    def kill(self, rank: int) -> None:
        psutil.Process(self.ranks()[rank]).kill()

    def finish(self) -> str:
        """Wait for the end of the job; the supervisor's output."""
        output: str = self.process.communicate(timeout=120)[1]
        return output

    def store(self) -> Any:
        """The store of the job."""
        return TCPStore("127.0.0.1", self._port, is_master=False, wait_for_workers=False)

    def rank_log(self, rank: int, name: str) -> str:
        return (self._logs / f"job-1/attempt_0/{rank}/{name}.log").read_text()


def losses(job: Job) -> dict[int, tuple[float, float, float | None]]:
    """Step -> loss, gradient norm and validation loss; of repeated lines the last."""
    return {line["step"]: (line["loss"], line["gradient_norm"], line["validation_loss"]) for line in job.lines()}
