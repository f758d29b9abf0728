"""Recovery from killed ranks: `recovery: in_process` against a restart of all ranks of the attempt.

One rank after another is killed by SIGKILL, `--kills` times, every `--period` seconds. `seconds` is the median time
from a kill to the end of the first step that starts after it. For `restart` the launcher ends, another launcher starts
at once, and all ranks resume from the newest checkpoint, without the time of the agents and the controller, and without
a standby that has imported torch. `ratio` is in_process divided by restart. `same_losses`: the losses of all steps
equal those of a run without kills.
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import psutil
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from trainyard.models.dataset import INDEX, Shard, TokenDataset
from trainyard.models.metrics import MetricLine

CONFIG: dict[str, Any] = {
    "model": {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 128, "sequence_length": 64},
    "steps": 1_000_000,
    "micro_batch_size": 1,
    "precision": "fp32",
    "checkpoint": {"interval_steps": 100, "keep_last": 2},
    "evaluation": {"interval_steps": 1000, "batches": 1},
    "threads": 1,
}
WARMUP_STEPS = 20
TIMEOUT_SECONDS = 180.0
Recovery = Literal["in_process", "restart"]


def write_dataset(folder: Path) -> None:
    """Write a dataset with real text."""
    text = Path(argparse.__file__).read_bytes()
    shards = []
    for key, part in {"a.bin": text[:80_000], "held-out.bin": text[80_000:]}.items():
        (folder / key).write_bytes(part)
        shards.append(Shard(key=key, count=len(part), bytes=len(part), sha256=hashlib.sha256(part).hexdigest()))
    index = TokenDataset(name="text", source="argparse.py", train=(shards[0],), validation=(shards[1],))
    (folder / INDEX).write_text(index.model_dump_json())


class Job:
    """A job with `ranks` ranks on this machine."""

    def __init__(self, folder: Path, data: Path, ranks: int, recovery: Recovery) -> None:
        self._folder, self._ranks, self._recovery = folder, ranks, recovery
        folder.mkdir()
        config = folder / "config.json"
        config.write_text(json.dumps(CONFIG | {"batch_size": ranks, "recovery": recovery}))
        self._trainer = ["-m", "trainer", "--config", str(config)]
        self._environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
            "DATA_URI": str(data),
            "TRAINYARD_RUN": "benchmark",
            "TRAINYARD_CACHE": str(folder.parent / "cache"),
            "CHECKPOINT_URI": str(folder / "checkpoints"),
            "RESULTS_URI": str(folder / "results"),
            "METRICS_DIR": str(folder / "metrics"),
        }
        self._attempt = 0
        self.start()

    def start(self) -> None:
        """Start an attempt."""
        self._attempt += 1
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        module = "trainer.recovery.supervisor" if self._recovery == "in_process" else "trainer.launcher"
        options = [f"--nproc-per-node={self._ranks}", f"--master-port={port}", f"--log-dir={self._folder}/logs"]
        options.append(f"--rdzv-id=attempt-{self._attempt}")
        if self._recovery == "restart":
            options += ["--max-restarts=0", "--redirects=3", "--monitor-interval=0.1", "--rdzv-backend=static"]
            options += ["--master-addr=127.0.0.1", "--nnodes=1", "--node-rank=0"]
        with (self._folder / "output.log").open("ab") as output:
            command = [sys.executable, "-m", module, *options, *self._trainer]
            self._process = subprocess.Popen(command, env=self._environment, stdout=output, stderr=output)

    def stop(self) -> None:
        """Stop the job, after a checkpoint."""
        self._process.terminate()
        self._process.wait(TIMEOUT_SECONDS)

    def lines(self) -> list[MetricLine]:
        """The metrics of all steps so far, in the order of their time."""
        file = self._folder / "metrics/metrics.jsonl"
        text = file.read_text() if file.exists() else ""
        return [MetricLine.model_validate_json(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_lines(self, count: int) -> list[MetricLine]:
        """Wait until `count` steps have metrics. Raises RuntimeError after TIMEOUT_SECONDS."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(lines := self.lines()) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(lines)} of {count} steps: see {self._folder}")
            time.sleep(0.05)
        return lines

    def recover(self, rank: int) -> float:
        """Kill a rank. Return the seconds from then to the end of the first step that starts afterwards."""
        self._rank_process(rank).kill()
        killed_at = time.time()
        if self._recovery == "restart":
            self._process.wait(TIMEOUT_SECONDS)
            count = len(self.lines())
            self.start()
            return self.wait_for_lines(count + 1)[count].time - killed_at
        time.sleep(0.2)  # metrics of the step that was complete at the kill
        count = len([line for line in self.lines() if line.time < killed_at + 0.2])
        return self.wait_for_lines(count + 1)[count].time - killed_at

    def _rank_process(self, rank: int) -> psutil.Process:
        """The process of a rank: its output is the rank's log."""
        for process in psutil.Process(self._process.pid).children():
            log = Path(f"/proc/{process.pid}/fd/1").readlink()
            if log.is_relative_to(self._folder / "logs") and log.parent.name == str(rank):
                return process
        raise RuntimeError(f"rank {rank} does not run: see {self._folder}")


@contextmanager
def running(folder: Path, data: Path, ranks: int, recovery: Recovery) -> Iterator[Job]:
    """A job past its first steps."""
    job = Job(folder, data, ranks, recovery)
    try:
        job.wait_for_lines(WARMUP_STEPS)
        yield job
    finally:
        job.stop()


def measure(ranks: int, kills: int, period: float) -> dict[str, Any]:
    """Measure both kinds of recovery, and compare losses with those of a run without kills."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, data = Path(name), Path(name) / "data"
        data.mkdir()
        write_dataset(data)
        lines = {}
        recoveries: tuple[Recovery, ...] = ("in_process", "restart")
        for recovery in recoveries:
            with running(folder / recovery, data, ranks, recovery) as job:
                seconds[recovery] = []
                for kill in range(kills):
                    time.sleep(period)
                    seconds[recovery].append(job.recover(kill % ranks))
                    print(f"{recovery}: {seconds[recovery][-1]:.2f} s", file=sys.stderr)
                lines[recovery] = job.wait_for_lines(len(job.lines()) + WARMUP_STEPS)
        losses = {line.step: line.loss for line in lines["in_process"]}
        with running(folder / "undisturbed", data, ranks, "in_process") as job:
            expected = {line.step: line.loss for line in job.wait_for_lines(len(losses))}
    medians = {recovery: median(values) for recovery, values in seconds.items()}
    return {
        "ranks": ranks,
        "kills": kills,
        "period_seconds": period,
        "seconds": {recovery: round(value, 2) for recovery, value in medians.items()},
        "worst_seconds": {recovery: round(max(values), 2) for recovery, values in seconds.items()},
        "ratio": round(medians["in_process"] / medians["restart"], 2),
        "steps": len(losses),
        "same_losses": all(expected[step] == loss for step, loss in losses.items() if step in expected),
        "load_average": round(os.getloadavg()[1], 1),
    }


def main(
    ranks: Annotated[int, typer.Option(min=2, help="Ranks on this machine.")] = 8,
    kills: Annotated[int, typer.Option(min=1, help="Killed ranks for each kind of recovery.")] = 5,
    period: Annotated[float, typer.Option(min=0, help="Seconds between a recovery and the next kill.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Print the median seconds from a killed rank to the next step."""
    result = measure(ranks, kills, period)
    if as_json:
        print(json.dumps(result))
        return
    for recovery, value in result["seconds"].items():
        print(f"{recovery:<12}{value:8.2f} s (longest {result['worst_seconds'][recovery]:.2f} s)")
    print(f"ratio {result['ratio']}, {result['steps']} steps, same losses: {result['same_losses']}")


if __name__ == "__main__":
    typer.run(main)
