"""Explain an out-of-memory error: memory in use and the settings that reduce it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainer.failures.memory_snapshot import MemorySnapshot
from trainyard.config.training import TrainerConfig
from trainyard.config.training.parallel import Layout
from trainyard.host_memory import MEMINFO, read_sizes

_GIB = 2**30
STATE_BYTES = 16  # per trained parameter: weight, gradient and AdamW's two moments, in fp32
_FRAGMENTED = 0.1  # share of the GPU's memory, reserved and not allocated, from which fragmentation is reported
# Errors without an exception class: the CPU allocator (c10/core/impl/alloc_cpu.cpp), CUDA allocations outside of
# torch's allocator (contexts, pinned memory), workspaces of CUDA libraries, and NCCL's buffers.
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)"
    r"|CUDA( driver)? error: out of memory|CUDA ran out of memory|Registering memory failed with cudaError: 2\b"
    r"|\bCU[A-Z]+_\w*ALLOC(ATION)?_FAILED"
    r"|Cuda failure (\d+ )?'out of memory'"
)


class OutOfMemoryError(Exception):
    """An allocation has failed; the message is for the user. The process exits with status 1."""


@contextmanager
def explain_out_of_memory(
    config: TrainerConfig,
    layout: Layout,
    device: torch.device,
    where: str,
    parameters: int,
    snapshot: MemorySnapshot | None = None,
) -> Iterator[None]:
    """Convert a failed allocation into OutOfMemoryError.

    `where`: the rank's host and GPU; `parameters`: number of parameters of the model, of all pipeline stages;
    `snapshot`: records the allocations, and is saved if an allocation of the GPU fails.
    """
    if snapshot:
        snapshot.start()
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        cause = next((line for line in lines if _OUT_OF_MEMORY.search(line)), lines[0])
        saved = snapshot.save() if snapshot and isinstance(error, torch.OutOfMemoryError) else None
        allocations = f"\nAllocations, for pytorch.org/memory_viz: {saved}" if saved else ""
        suggestions = memory_suggestions(config, layout, parameters, _unused_cache_bytes(device))
        listed = "".join(f"\n  - {suggestion}" for suggestion in suggestions)
        raise OutOfMemoryError(
            f"out of memory on {where}: {cause[:300]}\n{describe_memory(device)}{allocations}\n"
            f"Settings that reduce memory, the cheapest first:{listed}"
        ) from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that an allocation failed, on the CPU or the GPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def memory_suggestions(config: TrainerConfig, layout: Layout, parameters: int, cached: int = 0) -> Iterator[str]:
    """Yield the settings that reduce memory, each with its effect, the cheapest first.

    `parameters`: number of parameters of the model; `cached`: bytes that the GPU's allocator holds and no tensor uses.
    """
    if cached and "expandable_segments:True" not in os.environ.get("PYTORCH_ALLOC_CONF", ""):
        yield (
            f"the environment variable PYTORCH_ALLOC_CONF=expandable_segments:True: {cached / _GIB:.1f} GiB are"
            " reserved in blocks smaller than the request"
        )
    micro, accumulation = config.micro_batch_size, layout.accumulation
    if micro > 1:
        half = next(size for size in range(micro // 2, 0, -1) if micro % size == 0)
        yield (
            f"micro_batch_size {micro} -> {half}: batch_size remains {config.batch_size}, in"
            f" {accumulation * micro // half} micro-batches per rank instead of {accumulation}"
        )
    if config.precision == "fp32":
        yield "precision fp32 -> bf16: activations use half the memory"
    if config.model.kind != "images":
        chunk, tokens = config.memory.loss_chunk_tokens, micro * config.model.sequence_length
        if chunk is None or chunk > 256:
            current = f"{chunk}" if chunk else "none"
            yield f"memory.loss_chunk_tokens {current} -> 256: the logits of fewer than {tokens} tokens are in memory"
    checkpointing = config.memory.activation_checkpointing
    if checkpointing != "full" and config.model.kind != "images":  # image models have batch normalization
        stronger = "selective or full" if checkpointing == "none" else "full"
        yield (
            f"memory.activation_checkpointing {checkpointing} -> {stronger}: activations are recomputed in the backward"
            " pass; full takes about a third more time"
        )
    state_bytes = STATE_BYTES
    if config.lora is not None:  # frozen weights, and matrices that are small
        state_bytes = 4 if config.precision == "fp32" else 2
    state = parameters * state_bytes / layout.pipeline / layout.tensor / _GIB
    if config.parallel.data == "ddp" and layout.gradient_ranks > 1:
        yield (
            f"parallel.data ddp -> fsdp: weights, gradients and optimizer use {state:.2f} GiB on each rank, and would"
            f" use {state / layout.gradient_ranks:.2f} GiB on each of {layout.gradient_ranks} ranks"
        )
    elif config.parallel.data == "hsdp" and layout.replicate > 1:
        yield (
            "parallel.data hsdp -> fsdp: weights, gradients and optimizer would be in"
            f" {layout.gradient_ranks} shards instead of {layout.shard}"
        )
    if config.parallel.data != "ddp" and not config.parallel.reshard_after_forward:
        yield "parallel.reshard_after_forward false -> true: gathered weights are freed after a layer's forward pass"
    yield f"more or larger GPUs: the model's weights, gradients and optimizer use {state:.2f} GiB before sharding"


def describe_memory(device: torch.device) -> str:
    """Describe the device's memory and this process's share of it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        others = max(0, total - free - reserved)
        return (
            f"GPU memory: {total / _GIB:.2f} GiB: {allocated / _GIB:.2f} in tensors (peak"
            f" {torch.cuda.max_memory_allocated(device) / _GIB:.2f}), {(reserved - allocated) / _GIB:.2f} reserved by"
            f" torch's allocator, {others / _GIB:.2f} used otherwise (CUDA, NCCL, other processes),"
            f" {free / _GIB:.2f} free"
        )
    host, process = read_sizes(MEMINFO), read_sizes(Path("/proc/self/status"))
    parts = [
        f"{table[key] / _GIB:.2f} GiB {label}"
        for table, key, label in (
            (host, "MemTotal", "total"),
            (host, "MemAvailable", "available"),
            (process, "VmRSS", "resident in this process"),
            (process, "VmHWM", "peak of this process"),
        )
        if key in table
    ]
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdecimal():
        parts.append(f"{int(limit) / _GIB:.2f} GiB is the limit of its control group")
    return f"Host memory: {', '.join(parts) or 'unknown'}"


def _unused_cache_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return cached if cached > _FRAGMENTED * torch.cuda.get_device_properties(device).total_memory else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # not Linux, or no such control group
        return ""
