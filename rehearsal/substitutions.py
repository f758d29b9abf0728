"""Changes the settings of a stack so that it runs on this machine. The report lists each change."""

import copy
import sys
from math import gcd
from typing import Any

from rehearsal.profiles import TIME_SCALE
from rehearsal.seed import to_emulated_account
from rehearsal.sources import REHEARSED_MODEL, SMALL_VOCABULARY, Sources, is_small_model, model_source, shrink_model
from trainyard.config.catalog import catalog
from trainyard.config.field_types import HUB_SCHEME, is_s3_uri
from trainyard.config.settings import StackSettings
from trainyard.config.settings.capacity import CapacitySettings
from trainyard.config.training import TrainerConfig
from trainyard.config.training.low_precision import LOW_PRECISIONS
from trainyard.config.training.models import (
    MODEL_PATH,
    CustomModelConfig,
    DecoderConfig,
    HuggingFaceConfig,
    ImageModelConfig,
    ModelConfig,
)
from trainyard.config.training.parallel import ParallelConfig
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, Problem
from trainyard.models.report import BackendName, Substitution
from trainyard.quantity import quantity

STARTUP_TIMEOUT_MINUTES = 10.0
# Roles that booted nodes skip -> why the role cannot run.
UNAVAILABLE_ROLES = {
    "nvidia_driver": "this machine has no GPU",
    "cuda": "this machine has no GPU and nodes cannot reach NVIDIA's package repository",
    "efa": "this machine has no EFA device",
    "nvme": "a container has no instance store",
    "lustre": "the emulated AWS has no FSx for Lustre server and the kernel has no Lustre client",
}
GPU_PROCESSES = 2
# Replaces the model of a GPU stack: it trains in one minute on two cores.
SMALL_MODEL = {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 192, "sequence_length": 64}
EXPERTS = 4  # also of a shrunk model, see trainer/shrink_model.py
_SMALL_EXPERTS = {
    "architecture": "qwen3_moe",
    "experts": EXPERTS,
    "experts_per_token": 2,
    "expert_intermediate_size": 96,
}
SMALL_STEPS: dict[str, Any] = {
    "steps": 20,
    "micro_batch_size": 2,
    "checkpoint": {"interval_steps": 10, "interval_seconds": None},
    "evaluation": {"interval_steps": 20},
}
_SMALL_OPTIMIZER = {"learning_rate": 3e-3, "min_learning_rate": 3e-4, "warmup_steps": 5}


def skip_reason(role: str, backend: BackendName) -> str | None:
    """Return why nodes of this backend skip a role; None for a role that the stack itself skips, on AWS too."""
    if backend == "process":
        return "a node of the process backend has no operating system to configure"
    return UNAVAILABLE_ROLES.get(role)


class SettingsSubstitution:
    """Settings that are being changed, and the list of changes."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.settings = copy.deepcopy(raw)
        self.changes: list[Substitution] = []

    def section(self, name: str) -> dict[str, Any]:
        """Return a top-level section of the settings; it is created if it does not exist."""
        section: dict[str, Any] = self.settings.setdefault(name, {})
        return section

    def change(
        self, section: dict[str, Any], key: str, value: Any, *, original: str, replacement: str, reason: str
    ) -> None:
        """Set a key of a section, and record the change if the value differs."""
        if section.get(key) != value:
            section[key] = value
            self.changes.append(Substitution(original=original, replacement=replacement, reason=reason))


def substitute_settings(
    raw: dict[str, Any], nodes: int | None, backend: BackendName = "process", sources: Sources | None = None
) -> tuple[dict[str, Any], list[Substitution]]:
    """Return the settings to rehearse and the list of changes. `raw`: valid settings of a stack file.

    `sources`: folders of the user. Raises InputError for a model that cannot be rehearsed.
    """
    sources = sources or Sources()
    substitution = SettingsSubstitution(raw)
    settings, node = substitution.settings, substitution.section("node")
    if nodes is not None:
        original = quantity(settings["nodes"], "node")
        substitution.change(
            settings,
            "nodes",
            nodes,
            original=original,
            replacement=quantity(nodes, "node"),
            reason="set with --nodes",
        )
    if backend == "process":
        substitution.change(
            node,
            "provisioning",
            "skip",
            original="roles that configure the operating system",
            replacement="none, these roles are skipped",
            reason="a node of the process backend is a folder",
        )
    else:
        # The playbook reports the skipped roles in its events.
        node["skip_roles"] = sorted({*UNAVAILABLE_ROLES, *node.get("skip_roles", ())})
    substitution.change(
        node,
        "venv",
        sys.prefix,
        original="a Python environment on each node",
        replacement="the Python environment of the rehearsal",
        reason="installing one takes 5 GB per node",
    )
    launch = substitution.section("launch")
    substitution.change(
        launch,
        "startup_timeout_minutes",
        min(STARTUP_TIMEOUT_MINUTES, launch.get("startup_timeout_minutes", STARTUP_TIMEOUT_MINUTES)),
        original="launch.startup_timeout_minutes of the stack",
        replacement=quantity(STARTUP_TIMEOUT_MINUTES, "minute"),
        reason="the nodes install no packages",
    )
    if StackSettings.model_validate(raw).reserves_any_capacity:
        _shorten_capacity_search(substitution)
    _remove_container(substitution)
    _read_data_from_s3(substitution)
    _move_to_emulated_account(substitution)
    if nodes is not None:
        _adjust_batch_size(substitution)
    _move_model(substitution, sources)
    _replace_gpus(substitution, sources)
    _provide_dataset(substitution, sources)
    return settings, substitution.changes


def _shorten_capacity_search(substitution: SettingsSubstitution) -> None:
    capacity = substitution.section("capacity")
    wait = float(capacity.get("wait_minutes", CapacitySettings().wait_minutes))
    substitution.change(
        capacity,
        "wait_minutes",
        wait / TIME_SCALE,
        original=f"{quantity(wait, 'minute')} of capacity.wait_minutes",
        replacement=f"{wait / TIME_SCALE * 60:g} seconds",
        reason="the rehearsal takes minutes",
    )


def _remove_container(substitution: SettingsSubstitution) -> None:
    """Run a job that uses a container image without the image."""
    job = substitution.settings["job"]
    if image := job.get("container"):
        substitution.change(
            job,
            "container",
            None,
            original=f"the container image {image}, the digest of its tag, and the role that installs Docker",
            replacement="the Python environment of the rehearsal",
            reason="nodes cannot reach a container registry or Docker's package repository",
        )


def _read_data_from_s3(substitution: SettingsSubstitution) -> None:
    """Run a job that reads its dataset from FSx on the same dataset in S3."""
    job = substitution.settings["job"]
    if job.get("data") == "fsx":
        substitution.change(
            job,
            "data",
            "s3",
            original="a dataset that nodes read from FSx for Lustre",
            replacement="the same dataset in S3",
            reason=UNAVAILABLE_ROLES["lustre"],
        )


def _move_to_emulated_account(substitution: SettingsSubstitution) -> None:
    """Replace ARNs of the real account."""
    storage, identity = substitution.settings.get("storage") or {}, substitution.settings.get("identity") or {}
    if key := storage.get("kms_key"):
        arn = to_emulated_account(key)
        reason = "the emulated account has another account id"
        substitution.change(storage, "kms_key", arn, original=key, replacement=arn, reason=reason)
    job = substitution.settings["job"]
    if keys := job.get("kms_keys"):
        job["kms_keys"] = [to_emulated_account(each) for each in keys]
        reason = "the emulated account has another account id"
        substitution.changes.append(
            Substitution(original=", ".join(keys), replacement=", ".join(job["kms_keys"]), reason=reason)
        )
    if boundary := identity.get("permissions_boundary"):
        substitution.change(
            identity,
            "permissions_boundary",
            None,
            original=boundary,
            replacement="no permissions boundary",
            reason="the policy document exists in the real account only",
        )


def _adjust_batch_size(substitution: SettingsSubstitution) -> None:
    """Increase the batch size to the next multiple that the number of nodes set with --nodes can split."""
    settings, job = substitution.settings, substitution.settings["job"]
    train = job.get("train")
    if train is None:
        return
    config = TrainerConfig.model_validate(train)
    worker = catalog().get(settings["instance_type"])
    assert worker is not None, "the settings are valid"
    per_node = job.get("processes_per_node") or (worker.gpu.count if worker.gpu else 1)
    processes = settings["nodes"] * per_node
    model_parallel = config.parallel.ranks_per_sample
    if processes % model_parallel:
        return  # no batch size helps: the validation of the settings reports it
    multiple = config.micro_batch_size * (processes // model_parallel)
    batch_size = max(-(-config.batch_size // multiple), config.parallel.pipeline) * multiple
    if batch_size == config.batch_size:
        return
    nodes = quantity(settings["nodes"], "node")
    substitution.change(
        train,
        "batch_size",
        batch_size,
        original=f"batch size {config.batch_size}",
        replacement=f"batch size {batch_size}",
        reason=f"it must split over {nodes} x {quantity(per_node, 'process')}, on AWS too",
    )


def _move_model(substitution: SettingsSubstitution, sources: Sources) -> None:
    """Let the nodes read the folder of --model. Raises InputError if the job reads a model and there is none."""
    job = substitution.settings["job"]
    model = (job.get("train") or {}).get("model") or {}
    path, name = model.get("path"), job.get("model")
    if sources.model is None:
        if name or path:
            key, value = ("job.model", name) if name else ("job.train.model.path", path)
            reason = "the rehearsal cannot read this model"
            fix = "Name a folder with a copy of its config.json and tokenizer, with weights or without: --model FOLDER"
            raise InputError([invalid_setting(key, value, reason, fix, "model_not_readable")])
        return
    if not name and not path:
        reason, fix = "the job of the stack reads no model", "Set job.model, or omit --model"
        raise InputError([Problem("--model", str(sources.model), reason, fix, "model_not_used")])
    if path is not None and path != MODEL_PATH:
        original, reason = f"the folder {path} of the nodes", "the nodes of the rehearsal do not have it"
        substitution.change(model, "path", MODEL_PATH, original=original, replacement="MODEL_PATH", reason=reason)
        name = None
    if name is None or name.startswith(HUB_SCHEME):
        job["model"] = model_source(REHEARSED_MODEL)
        if name:
            original, reason = f"{name} as MODEL_PATH", "nodes cannot reach the Hugging Face hub"
            substitution.changes.append(
                Substitution(original=original, replacement="the folder of a copy", reason=reason)
            )


def _provide_dataset(substitution: SettingsSubstitution, sources: Sources) -> None:
    """Rehearse with the files of --data, or else with the built-in corpus. Raises InputError if neither is possible."""
    job = substitution.settings["job"]
    own_bucket, dataset = is_s3_uri(job.get("data", "s3")), job.get("dataset")
    if sources.data is not None:
        if not own_bucket and not dataset:
            reason, fix = "the job of the stack reads no data", "Set job.dataset or job.data, or omit --data"
            raise InputError([Problem("--data", str(sources.data), reason, fix, "data_not_used")])
        job["builtin_corpus"] = False
        return
    if not own_bucket and (not dataset or job.get("builtin_corpus")):
        return
    train = TrainerConfig.model_validate(job["train"]) if job.get("train") is not None else None
    if train is not None and isinstance(train.model, ImageModelConfig):
        key, value = ("job.data", job["data"]) if own_bucket else ("job.dataset", dataset)
        reason = "the rehearsal has no images for it"
        fix = "Name a folder of python -m trainer.prepare: --data FOLDER"
        raise InputError([invalid_setting(key, value, reason, fix, "data_not_readable")])
    if dataset:
        substitution.change(
            job,
            "builtin_corpus",
            True,
            original=f"the dataset {dataset}",
            replacement="the built-in corpus under the same name",
            reason="the emulated account does not contain the dataset; --data names a folder of yours",
        )


def _replace_gpus(substitution: SettingsSubstitution, sources: Sources) -> None:
    """Run a GPU stack on CPUs, with the same nodes but few processes and a model for two cores."""
    settings = substitution.settings
    worker = catalog().get(settings["instance_type"])
    assert worker is not None, "the settings are valid"
    if worker.gpu is None:
        return
    job, gpus = settings["job"], f"{worker.gpu.count} {worker.gpu.model} per node"
    substitution.change(
        substitution.section("node"),
        "use_gpus",
        False,
        original=f"{gpus}, NCCL",
        replacement="CPUs, Gloo",
        reason="the rehearsal needs no GPU",
    )
    if substitution.section("launch").get("health_check_timeout_minutes") != 0:
        substitution.changes.append(
            Substitution(
                original="GPUs, EFA and the catalog's minimum measurements in the health check",
                replacement="the same health check on CPUs with Gloo",
                reason="this machine has no GPUs and no EFA device",
            )
        )
    original_processes = job.get("processes_per_node") or worker.gpu.count
    processes = min(original_processes, GPU_PROCESSES)
    substitution.change(
        job,
        "processes_per_node",
        processes,
        original=f"{quantity(original_processes, 'process')} per node",
        replacement=f"{quantity(processes, 'process')} per node",
        reason="all nodes share the cores of this machine",
    )
    _replace_model(substitution, processes, sources)


def _replace_model(substitution: SettingsSubstitution, processes: int, sources: Sources) -> None:
    """Train a small model with the parallelism of the stack as far as the processes allow."""
    settings, job = substitution.settings, substitution.settings["job"]
    if job.get("train") is None:
        return
    config = TrainerConfig.model_validate(job["train"])
    world_size = settings["nodes"] * processes
    parallel = _reduce_parallelism(config.parallel, world_size, processes)
    multiple = SMALL_STEPS["micro_batch_size"] * (world_size // parallel.ranks_per_sample)
    precision = "bf16" if config.precision in LOW_PRECISIONS else config.precision
    model, text = _small_model(config.model, sources)
    if parallel.stage_count > SMALL_MODEL["layers"]:  # with several stages per rank
        model["layers"] = parallel.stage_count
    checkpoint = {**config.checkpoint.model_dump(exclude_defaults=True), **SMALL_STEPS["checkpoint"]}
    train = {
        "model": model,
        "precision": precision,
        "parallel": parallel.model_dump(exclude_defaults=True),
        **({} if config.lora is None else {"lora": config.lora.model_dump(exclude_defaults=True)}),
        "optimizer": _SMALL_OPTIMIZER | config.optimizer.model_dump(include={"kind"}, exclude_defaults=True),
        "memory": config.memory.model_dump(exclude_defaults=True),
        "data": config.data.model_dump(include={"separate_documents"}, exclude_defaults=True),
        "batch_size": multiple * parallel.pipeline,
        **SMALL_STEPS,
        "checkpoint": checkpoint,
    }
    substitution.change(
        job,
        "train",
        train,
        original="model, optimizer, batch size, steps and intervals of the stack",
        replacement=f"{text}, {precision}, {SMALL_STEPS['steps']} steps",
        reason="a CPU is slower than a GPU",
    )
    before, after = _describe_parallelism(config.parallel), _describe_parallelism(parallel)
    if before != after:
        reason = f"the rehearsal runs {quantity(world_size, 'process')}"
        substitution.changes.append(Substitution(original=before, replacement=after, reason=reason))


def _small_model(model: ModelConfig, sources: Sources) -> tuple[dict[str, Any], str]:
    """Return a model for two cores, and its description: of the same kind, if there is data for it.

    The vocabulary is that of the user's data, or that of the built-in corpus.
    """
    if isinstance(model, HuggingFaceConfig):
        return _small_hugging_face_model(model, sources)
    if isinstance(model, DecoderConfig) and model.path is not None:  # `provide_sources` shrinks a large model
        return model.model_dump(include={"path", "weights", "sequence_length"}), "the model of --model, or a small one"
    if isinstance(model, CustomModelConfig) and model.small_settings is not None:
        length = min(SMALL_MODEL["sequence_length"], model.sequence_length)
        settings = {**model.settings, **model.small_settings}
        custom = {**model.model_dump(exclude={"small_settings"}), "settings": settings, "sequence_length": length}
        if not sources.data:
            custom["vocabulary"] = SMALL_VOCABULARY
        return custom, f"{model.name} with small_settings"
    if isinstance(model, ImageModelConfig) and sources.data:
        small: dict[str, Any] = {"kind": "images", "architecture": "resnet18", "image_size": 32}
        return {**small, "classes": model.classes}, f"resnet18, {model.classes} classes, 32 pixels"
    vocabulary = {}
    if isinstance(model, DecoderConfig | CustomModelConfig) and sources.data:
        vocabulary = {"vocabulary": model.vocabulary}
    experts = _SMALL_EXPERTS if isinstance(model, DecoderConfig) and model.experts is not None else {}
    text = f"dim {SMALL_MODEL['dim']}, {SMALL_MODEL['layers']} layers"
    return SMALL_MODEL | vocabulary | experts, text + (f", {EXPERTS} experts" if experts else "")


def _small_hugging_face_model(model: HuggingFaceConfig, sources: Sources) -> tuple[dict[str, Any], str]:
    """Return the same class with few and narrow layers. Checks the model at full size; raises InputError."""
    vocabulary = None if sources.data else SMALL_VOCABULARY
    shape = model.model_dump(exclude_defaults=True) | {"kind": model.kind}
    folder = sources.model if model.path is not None else None
    shrunk = shrink_model(model.model_dump(), folder, vocabulary)
    shape["sequence_length"] = min(SMALL_MODEL["sequence_length"], model.sequence_length)
    if folder is None or not is_small_model(folder):
        shape["config"] = {**model.config, **shrunk["changes"]}
    return shape, f"{shrunk['architecture']} with {shrunk['shrunk_parameters']:,} parameters"


def _reduce_parallelism(parallel: ParallelConfig, world_size: int, processes_per_node: int) -> ParallelConfig:
    """Return the same kinds of parallelism with the largest degrees that divide the smaller number of processes."""
    tensor = gcd(parallel.tensor, processes_per_node)
    stages = range(1, min(parallel.pipeline, SMALL_MODEL["layers"]) + 1)
    pipeline = max(degree for degree in stages if world_size // tensor % degree == 0)
    ranks, shard = world_size // (tensor * pipeline), None
    if parallel.data == "hsdp":
        shard = gcd(parallel.shard or max(1, processes_per_node // tensor), ranks)
    context = gcd(parallel.context, shard or ranks)  # a shard group has whole sequences
    expert = gcd(parallel.expert, world_size, EXPERTS)
    changes: dict[str, Any] = {"tensor": tensor, "context": context, "pipeline": pipeline, "shard": shard}
    changes |= {"expert": expert, "async_tensor": False}  # for GPUs only
    if pipeline == 1 and parallel.schedule == "interleaved_1f1b":
        changes |= {"schedule": "1f1b", "stages_per_rank": None}
    return parallel.model_copy(update=changes)


def _describe_parallelism(parallel: ParallelConfig) -> str:
    degrees = ((name, getattr(parallel, name)) for name in ("context", "expert"))
    others = "".join(f", {name} {degree}" for name, degree in degrees if degree > 1)
    return f"{parallel.data}, tensor {parallel.tensor}, pipeline {parallel.pipeline}{others}"
