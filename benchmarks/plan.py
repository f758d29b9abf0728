"""Memory and communication per rank of the model presets and of every stack of `stacks/`, without GPUs.

Each case is a plan of `python -m trainer plan` with compiled blocks.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from trainer.plan.command import GIB, PlannedJob, describe, plan_job, read_job
from trainer.plan.step import RankPlan
from trainyard.config.training import TrainerConfig
from trainyard.errors import InputError

SELECTIVE, FULL = {"activation_checkpointing": "selective"}, {"activation_checkpointing": "full"}
# (preset, number of ranks) -> settings. batch_size is for two micro-batches per rank or more. 16 bytes per parameter of
# 70b are 1,129 GB: 8 GPUs do not suffice.
SETTINGS: Mapping[tuple[str, int], Mapping[str, Any]] = {
    ("1b", 8): {"parallel": {"data": "fsdp"}, "batch_size": 64, "micro_batch_size": 2},
    ("1b", 64): {"parallel": {"data": "hsdp"}, "batch_size": 256, "micro_batch_size": 2},
    ("1b", 512): {"parallel": {"data": "hsdp"}, "batch_size": 2048, "micro_batch_size": 2},
    ("8b", 8): {"parallel": {"data": "fsdp"}, "batch_size": 32, "micro_batch_size": 1, "memory": SELECTIVE},
    ("8b", 64): {"parallel": {"data": "fsdp"}, "batch_size": 128, "micro_batch_size": 1},
    ("8b", 512): {"parallel": {"data": "hsdp", "shard": 64}, "batch_size": 1024, "micro_batch_size": 1},
    ("70b", 64): {"parallel": {"data": "fsdp", "tensor": 8}, "batch_size": 32, "micro_batch_size": 1, "memory": FULL},
    ("70b", 512): {
        "parallel": {"data": "fsdp", "tensor": 8},
        "batch_size": 256,
        "micro_batch_size": 2,
        "memory": SELECTIVE,
    },
}


def preset_job(preset: str, ranks: int, gpu_gib: float = 80.0) -> PlannedJob:
    """Return the job of a preset on a number of ranks, 8 per node."""
    config = TrainerConfig.model_validate({"model": {"preset": preset}, **SETTINGS[preset, ranks]})
    return PlannedJob(config=config, ranks=ranks, per_node=8, gpu_gib=gpu_gib, compiled=True)


def stack_jobs() -> Iterator[tuple[str, PlannedJob]]:
    """Yield name and job of every GPU stack with the built-in trainer."""
    for file in sorted((ROOT / "stacks").glob("Pulumi.*.yaml")):
        try:
            job = read_job(file)
        except InputError:  # a job of the user
            continue
        if job.has_gpus:
            yield file.name.split(".")[1], job


def _cases(only: str | None) -> Iterator[tuple[str, PlannedJob]]:
    presets = ((f"{preset} on {ranks}", preset_job(preset, ranks)) for preset, ranks in SETTINGS)
    for cases in (presets, stack_jobs()):
        yield from ((name, job) for name, job in cases if only is None or only in name)


def main(
    only: Annotated[str | None, typer.Option(help="Cases whose name contains this text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print one line for each case."""
    results = {}
    for name, job in _cases(only):
        plans = plan_job(job)
        results[name] = describe(job, plans)
        if not as_json:
            typer.echo(f"| {name} | {' | '.join(_row(plans[0]))} |")
    if as_json:
        typer.echo(json.dumps(results, indent=1))


def _row(plan: RankPlan) -> Iterator[str]:
    yield f"{plan.peak_bytes / GIB:.1f}"
    yield ", ".join(f"{category} {size / GIB:.1f}" for category, size in plan.memory.items() if size > GIB / 20)
    yield f"{sum(total.count for total in plan.collectives.values()):,}"
    yield f"{sum(total.bytes for total in plan.collectives.values()) / GIB:.1f}"


if __name__ == "__main__":
    typer.run(main)
