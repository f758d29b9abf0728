"""What of a stack's settings is changed so that it fits this machine; each change stands in the report."""

import copy
import sys
from math import gcd
from typing import Any

from rehearsal.seed import in_this_account
from trainyard.config.catalog import catalog
from trainyard.config.training import TrainerConfig
from trainyard.config.training.parallel import ParallelConfig
from trainyard.models.report import BackendName, Scaled

BRING_UP_MINUTES = 10.0
# Roles that a booted node leaves out, and what they configure that is not here.
NOT_HERE = {
    "nvidia_driver": "no GPU is here",
    "cuda": "no GPU is here, and NVIDIA's packages are not reached",
    "efa": "no EFA device is here",
    "nvme": "no instance store is here: a container has no disk of its own",
    "lustre": "no FSx for Lustre is here, and the kernel has no client for it",
}
GPU_PROCESSES = 2
# In place of the model of a GPU stack: a minute on two cores.
SMALL_MODEL = {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 192, "sequence_length": 64}
SMALL_STEPS: dict[str, Any] = {
    "steps": 20,
    "micro_batch_size": 2,
    "checkpoint": {"every": 10},
    "evaluation": {"every": 20},
}
_SMALL_OPTIMIZER = {"learning_rate": 3e-3, "min_learning_rate": 3e-4, "warmup_steps": 5}


def why_left_out(role: str, backend: BackendName) -> str | None:
    """Why nodes of this back-end can't have a role; None where the stack itself leaves it out, on AWS too."""
    if backend == "process":
        return "a node here has no system of its own to change"
    return NOT_HERE.get(role)


class Scaling:
    """Settings on their way from a stack file to this machine."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.settings = copy.deepcopy(raw)
        self.changes: list[Scaled] = []

    def part(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.settings.setdefault(name, {})
        return found

    def put(self, part: dict[str, Any], key: str, value: Any, *, what: str, by: str, why: str) -> None:
        """Change one setting, and say so where that changes anything."""
        if part.get(key) != value:
            part[key] = value
            self.changes.append(Scaled(what=what, by=by, why=why))


def scale(
    raw: dict[str, Any], nodes: int | None, backend: BackendName = "process"
) -> tuple[dict[str, Any], list[Scaled]]:
    """The settings that are rehearsed, from valid ones of a stack file, and what was changed and why."""
    scaling = Scaling(raw)
    settings, node = scaling.settings, scaling.part("node")
    if nodes is not None:
        given = f"{settings['nodes']} nodes"
        scaling.put(settings, "nodes", nodes, what=given, by=f"{nodes} nodes", why="asked for on the command line")
    if backend == "process":
        scaling.put(
            node,
            "system",
            "as-is",
            what="roles that change a system",
            by="none: they are skipped",
            why="a node here is a folder",
        )
    else:
        node["leave_out"] = sorted({*NOT_HERE, *node.get("leave_out", ())})  # told by the play that leaves them out
    scaling.put(
        node,
        "venv",
        sys.prefix,
        what="a Python environment on each node",
        by="the one that runs the rehearsal",
        why="5 GB a node would be installed anew",
    )
    launch = scaling.part("launch")
    scaling.put(
        launch,
        "bring_up_minutes",
        min(BRING_UP_MINUTES, launch.get("bring_up_minutes", BRING_UP_MINUTES)),
        what="the stack's bring-up deadline",
        by=f"{BRING_UP_MINUTES:g} minutes",
        why="nothing is installed",
    )
    _without_registry(scaling)
    _of_this_account(scaling)
    if nodes is not None:
        _whole_batches(scaling)
    _without_gpus(scaling)
    return settings, scaling.changes


def _without_registry(scaling: Scaling) -> None:
    """A job of an image runs without it."""
    job = scaling.settings["job"]
    if image := job.get("container"):
        scaling.put(
            job,
            "container",
            None,
            what=f"the job's container {image}, and the role that provides it",
            by="the Python environment of the rehearsal",
            why="nodes here reach no registry, nor packages of Docker",
        )


def _of_this_account(scaling: Scaling) -> None:
    """What a stack names by its own account's number."""
    storage, identity = scaling.settings.get("storage") or {}, scaling.settings.get("identity") or {}
    if key := storage.get("kms_key"):
        there = in_this_account(key)
        scaling.put(storage, "kms_key", there, what=key, by=there, why="the emulated account has a number of its own")
    if boundary := identity.get("permissions_boundary"):
        why = "what it allows stands in the stack's own account"
        scaling.put(identity, "permissions_boundary", None, what=boundary, by="no permissions boundary", why=why)


def _whole_batches(scaling: Scaling) -> None:
    """Another number of nodes may not share the stack's batch: the next larger one that they do."""
    settings, job = scaling.settings, scaling.settings["job"]
    train = job.get("train")
    if train is None:
        return
    config = TrainerConfig.model_validate(train)
    worker = catalog().get(settings["instance_type"])
    assert worker is not None, "the settings are valid"
    each = job.get("processes_per_node") or (worker.gpu.count if worker.gpu else 1)
    taken = config.parallel.tensor * config.parallel.pipeline
    if settings["nodes"] * each % taken:
        return  # no batch mends that: the settings' rules tell it
    share = config.micro_batch_size * (settings["nodes"] * each // taken)
    whole = max(-(-config.batch_size // share), config.parallel.pipeline) * share
    if whole == config.batch_size:
        return
    what, by = f"a batch of {config.batch_size} samples", f"one of {whole}"
    scaling.put(
        train,
        "batch_size",
        whole,
        what=what,
        by=by,
        why=f"it must split over {settings['nodes']} nodes x {each}, on AWS too",
    )


def _without_gpus(scaling: Scaling) -> None:
    """A GPU stack keeps its topology; what its nodes compute is made small enough for two cores."""
    settings = scaling.settings
    worker = catalog().get(settings["instance_type"])
    assert worker is not None, "the settings are valid"
    if worker.gpu is None:
        return
    job, gpus = settings["job"], f"{worker.gpu.count} {worker.gpu.model} a node"
    scaling.put(
        scaling.part("node"), "accelerators", False, what=f"{gpus}, NCCL", by="CPUs, gloo", why="no GPU is needed here"
    )
    if scaling.part("launch").get("verify_minutes") != 0:
        what, by = "GPUs, EFA and the catalog's floors in the nodes' verification", "the same program on CPUs with gloo"
        scaling.changes.append(Scaled(what=what, by=by, why="neither is here"))
    asked = job.get("processes_per_node") or worker.gpu.count
    processes = min(asked, GPU_PROCESSES)
    scaling.put(
        job,
        "processes_per_node",
        processes,
        what=f"{asked} processes a node",
        by=f"{processes} processes a node",
        why="all nodes share this machine's cores",
    )
    _small(scaling, processes)


def _small(scaling: Scaling, processes: int) -> None:
    """A small model on the built-in corpus, spread as the stack's is as far as fewer processes allow."""
    settings, job = scaling.settings, scaling.settings["job"]
    if job.get("train") is None:
        return
    given = TrainerConfig.model_validate(job["train"])
    world = settings["nodes"] * processes
    parallel = _on_fewer(given.parallel, world, processes)
    share = SMALL_STEPS["micro_batch_size"] * (world // (parallel.tensor * parallel.pipeline))
    precision = "bf16" if given.precision == "float8" else given.precision
    small = {
        "model": SMALL_MODEL,
        "precision": precision,
        "parallel": parallel.model_dump(exclude_defaults=True),
        "optimizer": _SMALL_OPTIMIZER,
        "memory": given.memory.model_dump(exclude_defaults=True),
        "batch_size": share * parallel.pipeline,
        **SMALL_STEPS,
    }
    scaling.put(
        job,
        "train",
        small,
        what="the stack's model, optimizer, batch, steps and intervals",
        by=f"dim {SMALL_MODEL['dim']}, {SMALL_MODEL['layers']} layers, {precision}, {SMALL_STEPS['steps']} steps",
        why="a CPU is slower than a GPU",
    )
    before, after = _in_words(given.parallel), _in_words(parallel)
    if before != after:
        scaling.changes.append(Scaled(what=before, by=after, why=f"there are {world} processes"))
    if not job.get("builtin_corpus"):
        scaling.put(
            job,
            "builtin_corpus",
            True,
            what=f"the dataset {job['dataset']}",
            by="the built-in corpus under its name",
            why="the emulated account has none of yours",
        )


def _on_fewer(given: ParallelConfig, world: int, per_node: int) -> ParallelConfig:
    """The same kinds of parallelism with the largest numbers that divide so many processes."""
    tensor = gcd(given.tensor, per_node)
    stages = range(1, min(given.pipeline, SMALL_MODEL["layers"]) + 1)
    pipeline = max(number for number in stages if world // tensor % number == 0)
    shard = None
    if given.data == "hsdp":
        shard = gcd(given.shard or max(1, per_node // tensor), world // (tensor * pipeline))
    return given.model_copy(update={"tensor": tensor, "pipeline": pipeline, "shard": shard})


def _in_words(parallel: ParallelConfig) -> str:
    return f"{parallel.data}, tensor {parallel.tensor}, pipeline {parallel.pipeline}"
