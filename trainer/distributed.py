"""Set up torch.distributed: this process's device, the process groups and the device mesh."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.failures import flight_recorder
from trainer.failures.watchdog import EXPORT_TIMEOUT_SECONDS, process_group_timeout
from trainer.models.context_parallel import ContextShard
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.config.training.parallel import Layout
from trainyard.errors import InputError, Problem

DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")
EXPERT_DIMENSIONS = ("expert_shard", "expert")
# Timeout of the creation of process groups of a supervised job, for which all ranks have waited. If a rank is lost
# meanwhile, gloo waits for its connection, and nothing interrupts that wait: five times this timeout (torch 2.15,
# measured).
CREATION_SECONDS = 8.0


@dataclass(frozen=True, kw_only=True)
class DistributedContext:
    """This rank's device, process groups and position in the device mesh.

    Ranks that differ only in the dimension `pipeline` or `tensor`, or in the rank in `context_group`, train on the
    same samples.
    """

    device: torch.device
    layout: Layout
    mesh: DeviceMesh  # over those of DIMENSIONS that have more than one rank, at least one of them
    checkpoint_group: dist.ProcessGroup  # all ranks, on the CPU, with a long timeout
    # The ranks whose gradients are averaged: same pipeline stage, same part of each tensor; None: only this rank.
    gradient_group: dist.ProcessGroup | None
    control_group: dist.ProcessGroup  # all ranks, on the CPU, for the training thread
    context_group: dist.ProcessGroup | None  # the ranks with parts of the same sequences; None if it is only this rank
    # The ranks of `shard` as EXPERT_DIMENSIONS: a group of `expert` has all experts, and the ranks of `expert_shard`
    # have shards of the same experts. None without expert parallelism.
    expert_mesh: DeviceMesh | None = None

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return dist.get_world_size()

    @property
    def pipeline_stage(self) -> int:
        """Pipeline stage of this rank, from 0."""
        return self.layout.stage(self.rank)

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        return self.pipeline_stage == self.layout.pipeline - 1

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Return this rank's process group along a dimension of the mesh."""
        return self.mesh.get_group(dimension)

    @property
    def context_shard(self) -> ContextShard | None:
        """This rank's part of the sequences; None if it has whole sequences."""
        group = self.context_group
        return None if group is None else ContextShard(group.group_name, dist.get_rank(group), group.size())

    @property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        """Ranks of this rank's pipeline; None without pipeline parallelism."""
        return self.group("pipeline") if self.layout.pipeline > 1 else None

    @property
    def replicate_group(self) -> dist.ProcessGroup | None:
        """Ranks with the same weights as this rank; None if there is no other."""
        return self.group("replicate") if self.layout.replicate > 1 else None


def configure_device(config: TrainerConfig, environment: Environment) -> torch.device:
    """Return this process's GPU, or the CPU; set the number of threads and determinism.

    Raises InputError if the node has too few GPUs, or its GPU does not support the configured precision or
    asynchronous tensor parallelism.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(config.threads or max(1, cores // environment.local_world_size))
    gpus = torch.cuda.is_available()
    if config.deterministic if config.deterministic is not None else not gpus:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid
    capability = (0, 0)
    device = torch.device("cpu")
    if gpus:
        count = torch.cuda.device_count()
        if environment.local_rank >= count:
            reason = f"this node has {count} GPUs, and each process needs a separate GPU"
            fix = f"Start {count} processes on it, or disable the GPUs with CUDA_VISIBLE_DEVICES="
            raise InputError([Problem("LOCAL_RANK", environment.local_rank, reason, fix, "gpu_per_process_missing")])
        device = torch.device("cuda", environment.local_rank)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
        capability = torch.cuda.get_device_capability(device)
    _require_precision(config, device, capability)
    _require_symmetric_memory(config, device)
    return device


def _require_precision(config: TrainerConfig, device: torch.device, capability: tuple[int, int]) -> None:
    """Raise InputError if the device does not support the configured precision. CPUs support bf16, slowly."""
    if config.precision in ("mxfp8", "nvfp4") and capability[0] != 10:
        reason = f"needs a GPU of compute capability 10.x, such as B200; this process has {_describe_gpu(device)}"
        fix = "Set it to float8" if capability >= (8, 9) else "Set it to bf16"
    elif config.precision == "float8" and capability < (8, 9):
        reason = f"needs a GPU of compute capability 8.9 or newer; this process has {_describe_gpu(device)}"
        fix = "Set it to fp16" if device.type == "cuda" and capability < (8, 0) else "Set it to bf16"
    elif config.precision == "bf16" and device.type == "cuda" and capability < (8, 0):
        reason = f"needs a GPU of compute capability 8.0 or newer; this process has {_describe_gpu(device)}"
        fix = "Set it to fp16"
    else:
        return
    raise InputError([Problem("config.precision", config.precision, reason, fix, "precision_unsupported")])


def _require_symmetric_memory(config: TrainerConfig, device: torch.device) -> None:
    """Raise InputError if asynchronous tensor parallelism is set and the device is no NVIDIA GPU."""
    if not config.parallel.async_tensor or (device.type == "cuda" and torch.version.hip is None):
        return
    reason = f"needs NVIDIA GPUs, which read each other's memory; this process has {_describe_gpu(device)}"
    raise InputError([Problem("config.parallel.async_tensor", True, reason, "Remove it", "async_tensor_unsupported")])


def _describe_gpu(device: torch.device) -> str:
    if device.type != "cuda":
        return "no GPU"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} of compute capability {major}.{minor}"


@contextmanager
def init_distributed(
    config: TrainerConfig, environment: Environment, device: torch.device, store: Store | None = None
) -> Iterator[DistributedContext]:
    """Initialize the process group and the device mesh, and destroy the process group on exit.

    A process group that is already initialized is used and not destroyed. `store`: the store of a supervised job; None:
    that of torchrun.
    """
    initialize = not dist.is_initialized()
    try:
        if initialize:
            _init_process_group(environment, device, process_group_timeout(config.timeouts.longest_seconds), store)
        with _limited_creation() if store is not None else nullcontext():
            sizes = environment.world_size, environment.local_world_size
            distributed = build_distributed(config, *sizes, device, _create_cpu_group)
        yield distributed
    finally:
        if initialize and dist.is_initialized():  # also if a lost peer has interrupted the initialization
            dist.destroy_process_group()


def _init_process_group(
    environment: Environment, device: torch.device, timeout: timedelta, store: Store | None
) -> None:
    flight_recorder.enable_flight_recorder()  # process groups read the setting when they are created
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if store is not None:
        rank, world_size = environment.rank, environment.world_size
        store.set_timeout(timeout)  # as torch does for the store of torchrun
        store.set(f"ready/{rank}", "1")
        store.wait([f"ready/{each}" for each in range(world_size)], timeout)
        # torch counts groups whose creation has failed, too: their names would differ from those of a new rank.
        distributed_c10d._world.group_count = 0
        creation = timedelta(seconds=CREATION_SECONDS)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=creation)
        dist.set_timeout(timeout)
    elif environment.world_size == 1 and "MASTER_ADDR" not in os.environ:
        store = dist.HashStore()  # type: ignore[attr-defined]  # exported, but not by name
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)


@contextmanager
def _limited_creation() -> Iterator[None]:
    """Limit the creation of process groups that get torch's default timeout. Their timeout is set afterwards."""
    default = distributed_c10d.default_pg_timeout
    distributed_c10d.default_pg_timeout = timedelta(seconds=CREATION_SECONDS)
    try:
        yield
    finally:
        distributed_c10d.default_pg_timeout = default


def _create_cpu_group(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=distributed_c10d.default_pg_timeout)
    assert isinstance(group, dist.ProcessGroup), "every rank is in the group"
    dist.set_timeout(timeout, group)
    return group


def _create_context_group(layout: Layout) -> dist.ProcessGroup | None:
    if layout.context == 1:
        return None
    group, _ = dist.new_subgroups_by_enumeration(layout.context_groups())
    assert isinstance(group, dist.ProcessGroup), "every rank is in a group"
    return group


def build_distributed(
    config: TrainerConfig,
    world_size: int,
    per_node: int,
    device: torch.device,
    create_cpu_group: Callable[[timedelta], dist.ProcessGroup],
) -> DistributedContext:
    """Create the device mesh and its process groups. torch's default process group is initialized.

    `create_cpu_group`: returns a group of all ranks for tensors on the CPU, with a timeout.
    """
    longest_seconds = config.timeouts.longest_seconds
    timeout = process_group_timeout(longest_seconds)
    # For checkpoints and exports: a write by one rank takes long.
    checkpoint_group = create_cpu_group(process_group_timeout(max(EXPORT_TIMEOUT_SECONDS, longest_seconds)))
    control_group = create_cpu_group(timeout)
    layout = config.layout(world_size, per_node)
    sizes = {name: getattr(layout, name) for name in DIMENSIONS}
    # A process group costs memory and time. fully_shard needs the dimension `shard`, also with one rank.
    names = [name for name in DIMENSIONS if sizes[name] > 1 or (name == "shard" and config.parallel.sharded)]
    names = names or ["shard"]
    mesh = init_device_mesh(device.type, tuple(sizes[name] for name in names), mesh_dim_names=tuple(names))
    groups = mesh.get_all_groups()
    data = tuple(name for name in ("replicate", "shard") if sizes[name] > 1)
    gradient_group = mesh.get_group(data[0]) if data else None
    if len(data) > 1:
        groups.append(gradient_group := mesh[data]._flatten("data").get_group())
    context_group = _create_context_group(layout)
    groups += [context_group] if context_group is not None else []
    expert_mesh = None
    if (expert := config.parallel.expert) > 1:
        expert_mesh = mesh["shard"]._unflatten(0, (layout.shard // expert, expert), EXPERT_DIMENSIONS)
        expert_mesh._flatten("experts")  # for sums over all of them in one operation: norms of gradients
        groups += expert_mesh.get_all_groups()
    for group in groups:  # a mesh creates groups with torch's default of 30 minutes
        if group is not dist.group.WORLD:
            dist.set_timeout(timeout, group)
    return DistributedContext(
        device=device,
        layout=layout,
        mesh=mesh,
        checkpoint_group=checkpoint_group,
        gradient_group=gradient_group,
        control_group=control_group,
        context_group=context_group,
        expert_mesh=expert_mesh,
    )
