"""The command `python -m trainer plan CONFIG --ranks N`: memory and communication of each rank, without GPUs."""

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.failures.out_of_memory import STATE_BYTES
from trainer.plan.candidates import smaller_configurations
from trainer.plan.step import RankPlan, plan_rank
from trainer.settings import load_config, resolve_model
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.config.project import find_project
from trainyard.config.stack_config import read_config
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import MODEL_PATH, DecoderConfig, LanguageModelConfig
from trainyard.errors import InputError, Problem

GIB = 2**30
# Share of a GPU's memory that the plan leaves for what it does not contain: CUDA's context, NCCL's buffers, workspaces
# of libraries, and the fragmentation of torch's allocator.
RESERVED = 0.1
_DEFAULT_GIB = 80.0
_DEFAULT_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A configuration and the GPUs for it."""

    config: TrainerConfig
    ranks: int
    per_node: int
    gpu_gib: float
    compiled: bool
    has_gpus: bool = True

    @property
    def usable_bytes(self) -> float:
        """Memory of a GPU for tensors."""
        return self.gpu_gib * GIB * (1 - RESERVED)


def plan_job(job: PlannedJob) -> list[RankPlan]:
    """Plan the first rank, and with a pipeline the last rank, too: each in a new process."""
    ranks = [0] if job.config.parallel.pipeline == 1 else [0, job.ranks - 1]
    with ProcessPoolExecutor(len(ranks), mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [
            pool.submit(plan_rank, job.config, job.ranks, job.per_node, rank, compiled=job.compiled) for rank in ranks
        ]
        return [future.result() for future in futures]


def fits(job: PlannedJob, plans: Sequence[RankPlan]) -> bool:
    """Whether each rank has enough memory."""
    return all(plan.peak_bytes <= job.usable_bytes for plan in plans)


def find_fitting_change(job: PlannedJob) -> tuple[str, list[RankPlan]] | None:
    """Return the cheapest changes of the configuration with which it fits, and its plans; None if there are none."""
    for config, changes in smaller_configurations(job.config, job.ranks, job.per_node):
        plans = plan_job(smaller := replace(job, config=config))
        print(f"with {', '.join(changes)}: {_peak_gib(plans):.1f} GiB", file=sys.stderr, flush=True)
        if fits(smaller, plans):
            return ", ".join(changes), plans
    return None


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0 if the job fits; raises InputError if it does not, and for invalid input."""
    options = _parser().parse_args(arguments)
    job = read_job(
        options.config,
        ranks=options.ranks,
        per_node=options.ranks_per_node,
        gpu_gib=options.gpu_memory_gib,
        is_compiled=not options.no_compile,
    )
    plans = plan_job(job)
    result = {"fits": fits(job, plans), **describe(job, plans)}
    print(json.dumps(result, indent=1) if options.json else "\n".join(_table(job, plans)), flush=True)
    if result["fits"]:
        return 0
    reason = (
        f"a rank needs {_peak_gib(plans):.1f} GiB, and a GPU of {job.gpu_gib:.1f} GiB has"
        f" {job.usable_bytes / GIB:.1f} GiB for tensors ({RESERVED:.0%} are left for CUDA, NCCL and fragmentation)"
    )
    needed = _minimum_ranks(job)
    smaller = find_fitting_change(job) if needed <= job.ranks else None
    if needed > job.ranks:
        fix = f"Use at least {needed} ranks, or GPUs with more memory: weights, gradients and optimizer do not fit"
    elif smaller is None:
        fix = "Use more ranks, or GPUs with more memory: no change of the memory settings is sufficient"
    else:
        fix = f"Change {smaller[0]}: {_peak_gib(smaller[1]):.1f} GiB"
    raise InputError([Problem("config", str(options.config), reason, fix, "plan_exceeds_gpu_memory")])


def _minimum_ranks(job: PlannedJob) -> int:
    """Return the number of ranks that have memory for the state of the model alone: 16 bytes per parameter."""
    model = job.config.model
    if not isinstance(model, DecoderConfig) or job.config.lora is not None:
        return 1
    bytes_per_parameter = 12 if job.config.optimizer.kind == "muon" else STATE_BYTES
    return math.ceil(model.parameters * bytes_per_parameter / job.usable_bytes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer plan", description="Calculate memory and communication of a training step, without GPUs."
    )
    parser.add_argument("config", type=Path, help="JSON file of a TrainerConfig, or stack file (.yaml)")
    parser.add_argument("--ranks", type=int, help="number of ranks; default: those of the stack file, or 1")
    parser.add_argument(
        "--ranks-per-node", type=int, help=f"default: those of the stack file, or up to {_DEFAULT_PER_NODE}"
    )
    parser.add_argument(
        "--gpu-memory-gib", type=float, help=f"default: that of the stack's instance type, or {_DEFAULT_GIB:g}"
    )
    parser.add_argument("--no-compile", action="store_true", help="blocks are not compiled")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def read_job(
    file: Path,
    *,
    ranks: int | None = None,
    per_node: int | None = None,
    gpu_gib: float | None = None,
    is_compiled: bool = True,
) -> PlannedJob:
    """Read a JSON file of a TrainerConfig or a stack file (.yaml), which also has the default of the other values.

    Raises InputError for an invalid file, a stack without the built-in trainer, and ranks that cannot run it.
    """
    has_gpus = True
    if file.suffix in (".yaml", ".yml"):
        root = find_project(file.absolute().parent).folder
        settings = load_settings(read_config(file, str(file)).get(CONFIG_KEY), root, file.name)
        if settings.job.train is None:
            reason, fix = "its job is a custom job, whose memory is unknown", "Name a stack with job.train"
            raise InputError([Problem("config", str(file), reason, fix, "no_built_in_trainer")])
        config, gpu = _with_shape(settings.job.train, settings.job.model), settings.worker_type.gpu
        per_node = per_node or settings.processes_per_node
        ranks = ranks or settings.nodes * per_node
        has_gpus, gpu_gib = gpu is not None, gpu_gib or (gpu.memory_mib / 1024 if gpu else None)
        if problems := config.problems(ranks, per_node):
            raise InputError(problems)
    else:
        ranks = ranks or 1
        per_node = per_node or min(ranks, _DEFAULT_PER_NODE)
        config = load_config(file, ranks, per_node)
    return PlannedJob(
        config=config,
        ranks=ranks,
        per_node=per_node,
        gpu_gib=gpu_gib or _DEFAULT_GIB,
        has_gpus=has_gpus,
        # Only the decoder's blocks are planned as compiled; with expert parallelism they are not compiled.
        compiled=is_compiled
        and config.memory.compile is not False
        and isinstance(config.model, DecoderConfig)
        and config.parallel.expert == 1,
    )


def _with_shape(config: TrainerConfig, job_model: str | None) -> TrainerConfig:
    """Return the configuration of a stack with the shape of its model in config.json.

    Raises InputError if only the nodes can read the model, and no preset has its shape.
    """
    model = config.model
    if not isinstance(model, LanguageModelConfig) or model.path is None:
        return config
    if isinstance(model, DecoderConfig) and model.has_shape:
        return config
    is_variable = model.path == MODEL_PATH and not os.environ.get(MODEL_PATH.lstrip("$"))
    if is_variable or (model.path.startswith("/") and not Path(model.path).exists()):
        where = f"job.model, {job_model}" if is_variable else f"{model.path} of the nodes"
        reason = f"is the model in {where}: its shape is not known here"
        fix = "Set MODEL_PATH to a folder with its config.json, and model.path to $MODEL_PATH; or set model.preset"
        raise InputError([Problem("job.train.model.path", model.path, reason, fix, "model_shape_unknown")])
    return resolve_model(config)


def _peak_gib(plans: Sequence[RankPlan]) -> float:
    return max(plan.peak_bytes for plan in plans) / GIB


def describe(job: PlannedJob, plans: Sequence[RankPlan]) -> Mapping[str, Any]:
    """Return the plan as a JSON object. Sizes are in bytes."""
    return {
        "ranks": job.ranks,
        "ranks_per_node": job.per_node,
        "compiled": job.compiled,
        "usable_bytes": round(job.usable_bytes),
        "plans": [
            {
                "rank": plan.rank,
                "peak_bytes": plan.peak_bytes,
                "memory": plan.memory,
                "collectives": [
                    {"operation": each.name, "group": each.group, "ranks": each.ranks, **vars(total)}
                    for each, total in plan.collectives.items()
                ],
            }
            for plan in plans
        ],
    }


def _table(job: PlannedJob, plans: Sequence[RankPlan]) -> Iterator[str]:
    layout = job.config.layout(job.ranks, job.per_node)
    context = f" (context {layout.context} in replicate x shard)" if layout.context > 1 else ""
    yield (
        f"{job.ranks} ranks, {job.per_node} per node: pipeline {layout.pipeline} x replicate {layout.replicate}"
        f" x shard {layout.shard} x tensor {layout.tensor}{context}; {layout.accumulation} micro-batches per step;"
        f" {'compiled' if job.compiled else 'not compiled'}"
    )
    unit, size = ("GiB", GIB) if max(plan.peak_bytes for plan in plans) >= GIB else ("MiB", 2**20)
    yield f"\n{f'{unit} at the peak of a step':28}" + "".join(f"{f'rank {plan.rank}':>12}" for plan in plans)
    for category in plans[0].memory:
        yield f"{category:28}" + "".join(f"{plan.memory[category] / size:12.2f}" for plan in plans)
    yield f"{'sum':28}" + "".join(f"{plan.peak_bytes / size:12.2f}" for plan in plans)
    if job.has_gpus:
        yield f"{'available for tensors':28}" + f"{job.usable_bytes / size:12.2f}" * len(plans)
    for plan in plans:
        yield f"\n{f'collectives of rank {plan.rank} in a step':36}{'ranks':>6}{'count':>8}{unit:>10}"
        for each, total in plan.collectives.items():
            yield f"{f'{each.name} ({each.group})':36}{each.ranks:6}{total.count:8}{total.bytes / size:10.2f}"
