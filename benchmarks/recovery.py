"""Seconds from a failed rank to the next step, with and without standby and copies in host memory.

Each variant is a rehearsal of the stack `local`: two nodes with two ranks each (process backend). A rank is killed
twice; the second time the other ranks hang, as they do in NCCL. `seconds` is the time from a fault to the end of the
first step after it, and `repeated` the number of steps that are repeated. `ratio` is the time divided by that of the
first variant, which has neither.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from trainyard.models.report import Report

STACK, STEPS = "local", 220
FAULTS = {"rank killed": "rank-kill,rank=3,step=95", "peers hang": "rank-kill,rank=1,peers=hang,step=165"}
VARIANTS = {
    "neither": (False, False),
    "memory": (False, True),
    "standby": (True, False),
    "both": (True, True),
}


def measure_variant(standby: bool, memory: bool) -> dict[str, tuple[float, int]]:
    """Run a rehearsal with all faults; return fault -> seconds and repeated steps. Raises RuntimeError if it fails."""
    checkpoint = "job.train.checkpoint"
    changes = [f"job.train.steps={STEPS}", f"job.standby={str(standby).lower()}"]
    changes += [f"{checkpoint}.interval_steps=20", f"{checkpoint}.memory_copies={str(memory).lower()}"]
    changes += [f"{checkpoint}.memory_interval_steps=1"] if memory else []
    command = [sys.executable, "-m", "rehearsal", "run", "--json", "--stack", STACK]
    command += [option for fault in FAULTS.values() for option in ("--fault", fault)]
    command += [option for change in changes for option in ("--set", change)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {process.returncode}: {process.stderr[-2000:]}")
    return find_recoveries(Report.model_validate_json(process.stdout))


def find_recoveries(report: Report) -> dict[str, tuple[float, int]]:
    """Return fault -> seconds to the next step and repeated steps. Raises RuntimeError if one has no next step."""
    recoveries = {}
    for name, recovery in zip(FAULTS, report.recoveries, strict=True):
        if recovery.next_step_seconds is None:
            raise RuntimeError(f"no step followed {recovery.fault}")
        recoveries[name] = recovery.next_step_seconds, recovery.repeated_steps
    return recoveries


def measure() -> dict[str, Any]:
    """Measure all variants, one after the other."""
    results = {name: measure_variant(*options) for name, options in VARIANTS.items()}
    base = next(iter(results.values()))
    return {
        "stack": STACK,
        "variants": {
            name: {
                fault: {"seconds": seconds, "repeated": repeated, "ratio": round(seconds / base[fault][0], 2)}
                for fault, (seconds, repeated) in recoveries.items()
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
