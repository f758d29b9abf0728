"""This process among all: its device, its group, and its place in the mesh of ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.failures import flight
from trainer.failures.watch import EXPORT_SECONDS, GRACE_SECONDS, group_timeout
from trainer.settings import Environment
from trainyard.base import InputError, Problem
from trainyard.config.training import TrainerConfig
from trainyard.config.training.parallel import Layout

# Of the group of checkpoints and exports, where one rank may write for long: after all that the watch grants.
CHECKPOINT_TIMEOUT = timedelta(seconds=EXPORT_SECONDS + GRACE_SECONDS)
DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Where this rank stands. Ranks that differ in `pipeline` or `tensor` alone see the same samples."""

    device: torch.device
    layout: Layout
    mesh: DeviceMesh  # over DIMENSIONS
    checkpoints: dist.ProcessGroup  # all ranks, on the CPU, where one may be slower than others
    sharers: dist.ProcessGroup  # those that share the batch with this one: same stage, same piece of each tensor

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    @property
    def stage(self) -> int:
        return self.layout.stage(self.rank)

    @property
    def last_stage(self) -> bool:
        return self.stage == self.layout.pipeline - 1

    def group(self, dimension: str) -> dist.ProcessGroup:
        return self.mesh.get_group(dimension)

    @property
    def stages(self) -> dist.ProcessGroup | None:
        """The ranks of this one's pipeline; None where there is none."""
        return self.group("pipeline") if self.layout.pipeline > 1 else None

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """The ranks that hold the very same weights; None where there is but one."""
        return self.group("replicate") if self.layout.replicate > 1 else None


def choose_device(config: TrainerConfig, environment: Environment) -> torch.device:
    """This process's GPU, or the CPU with its share of the cores.

    Raises InputError where the node has too few GPUs, or none that does what the configuration asks.
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
            why = f"this node has {count} GPUs, and every process needs one of its own"
            fix = f"Start {count} processes on it, or hide the GPUs with CUDA_VISIBLE_DEVICES="
            raise InputError([Problem(key="LOCAL_RANK", value=environment.local_rank, why=why, fix=fix)])
        device = torch.device("cuda", environment.local_rank)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
        capability = torch.cuda.get_device_capability(device)
    _require_precision(config, device, capability)
    return device


def _require_precision(config: TrainerConfig, device: torch.device, capability: tuple[int, int]) -> None:
    """Raises InputError where the device's tensor cores lack what the configuration asks. A CPU does bf16, slowly."""
    if config.precision == "float8" and capability < (8, 9):
        why = f"needs a GPU of compute capability 8.9 or newer, and here is {_named(device)}"
        fix = "Take fp16" if device.type == "cuda" and capability < (8, 0) else "Take bf16"
    elif config.precision == "bf16" and device.type == "cuda" and capability < (8, 0):
        why = f"needs a GPU of compute capability 8.0 or newer, and here is {_named(device)}"
        fix = "Take fp16"
    else:
        return
    raise InputError([Problem(key="config.precision", value=config.precision, why=why, fix=fix)])


def _named(device: torch.device) -> str:
    if device.type != "cuda":
        return "no GPU"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} of {major}.{minor}"


@contextmanager
def join(config: TrainerConfig, environment: Environment, device: torch.device) -> Iterator[Ranks]:
    """Meet the other ranks, and part from them at the end; a process group that is there already is used, and stays."""
    own = not dist.is_initialized()
    if own:
        _meet(environment, device, group_timeout(config.timeout_seconds))
    try:
        yield _placed(config, environment, device)
    finally:
        if own:
            dist.destroy_process_group()


def _meet(environment: Environment, device: torch.device, timeout: timedelta) -> None:
    flight.switch_on()  # groups read it when they are made
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if environment.world_size == 1 and "MASTER_ADDR" not in os.environ:
        alone = dist.HashStore()  # type: ignore[attr-defined]  # exported, but not by name
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)


def _placed(config: TrainerConfig, environment: Environment, device: torch.device) -> Ranks:
    group = dist.new_group(backend="gloo", timeout=CHECKPOINT_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup), "every rank is in the group"
    layout = config.layout(environment.world_size, environment.local_world_size)
    shape = (layout.pipeline, layout.replicate, layout.shard, layout.tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=DIMENSIONS)
    sharers = mesh["replicate", "shard"]._flatten("data").get_group()
    for each in (*mesh.get_all_groups(), sharers):  # a mesh gives its groups torch's own limit, of half an hour
        if each is not dist.group.WORLD:
            dist.set_timeout(group_timeout(config.timeout_seconds), each)
    return Ranks(device=device, layout=layout, mesh=mesh, checkpoints=group, sharers=sharers)
