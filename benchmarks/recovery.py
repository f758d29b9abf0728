"""Seconds from a failed rank to the next step, with and without standby and copies in host memory.

Each variant is a rehearsal of the stack `local`: two nodes with two ranks each (process backend). A rank is killed
twice; the second time the other ranks hang, as they do in NCCL. `seconds` is the time from the last step before a fault
to the first step after it, and `repeated` the number of steps that are repeated. `ratio` is the time divided by that of
the first variant, which has neither.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from trainyard.models.metrics import MetricLine

STACK, STEPS = "local", 220
FAULTS = {"rank killed": "rank-kill,rank=3,step=95", "peers hang": "rank-kill,rank=1,step=165,peers=hang"}
VARIANTS = {
    "neither": (False, False),
    "memory": (False, True),
    "standby": (True, False),
    "both": (True, True),
}


@dataclass(frozen=True)
class Recovery:
    """The recovery from one fault."""

    seconds: float
    repeated: int


def measure_variant(standby: bool, memory: bool) -> dict[str, Recovery]:
    """Run a rehearsal with all faults, and return the recovery from each. Raises RuntimeError if it fails."""
    checkpoint = "job.train.checkpoint"
    changes = [f"job.train.steps={STEPS}", f"job.standby={str(standby).lower()}"]
    changes += [f"{checkpoint}.interval_steps=20", f"{checkpoint}.memory_copies={str(memory).lower()}"]
    changes += [f"{checkpoint}.memory_interval_steps=1"]
    command = [sys.executable, "-m", "rehearsal", "run", "--stack", STACK]
    command += [option for fault in FAULTS.values() for option in ("--fault", fault)]
    command += [option for change in changes for option in ("--set", change)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {process.returncode}: {process.stderr[-2000:]}")
    return dict(zip(FAULTS, find_recoveries(read_metrics(ROOT / f"build/rehearsal/{STACK}")), strict=True))


def read_metrics(folder: Path) -> list[MetricLine]:
    """Return the metrics of all attempts on the nodes of a rehearsal. Its results have each step once."""
    files = folder.glob("nodes/*/opt/trainyard/runs/*/attempt-*/metrics/metrics.jsonl")
    return [MetricLine.model_validate_json(line) for file in files for line in file.read_text().splitlines()]


def find_recoveries(lines: list[MetricLine]) -> list[Recovery]:
    """Return the recoveries between consecutive attempts."""
    recoveries = []
    for before, after in pairwise(sorted(lines, key=lambda line: (line.attempt, line.step))):
        if after.attempt > before.attempt:
            recoveries.append(Recovery(round(after.time - before.time, 2), before.step - after.step + 1))
    return recoveries


def measure() -> dict[str, Any]:
    """Measure all variants, one after the other."""
    results = {name: measure_variant(*options) for name, options in VARIANTS.items()}
    base = next(iter(results.values()))
    return {
        "stack": STACK,
        "variants": {
            name: {
                fault: {**asdict(recovery), "ratio": round(recovery.seconds / base[fault].seconds, 2)}
                for fault, recovery in recoveries.items()
            }
            for name, recoveries in results.items()
        },
    }


def main(as_json: AsJson = False) -> None:
    """Seconds from a failed rank to the next step."""
    results = measure()
    if as_json:
        print(json.dumps(results))
        return
    print("variant   fault          seconds  repeated   ratio")
    for name, recoveries in results["variants"].items():
        for fault, each in recoveries.items():
            print(f"{name:<9} {fault:<12} {each['seconds']:>8.2f} s {each['repeated']:>8} {each['ratio']:>7.2f}")


if __name__ == "__main__":
    typer.run(main)
