"""Out of memory: what to change, with today's numbers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainyard.config.training import TrainerConfig
from trainyard.config.training.parallel import Layout

_GIB = 2**30
_STATE_BYTES = 16  # of a parameter in training: its weight, its gradient and AdamW's two moments, in fp32
_FRAGMENTED = 0.1  # of the GPU's memory: what is reserved and not allocated is worth a word
# What has no exception of its own: the CPU's allocator (c10/core/impl/alloc_cpu.cpp), CUDA where torch's allocator is
# not asked (contexts, pinned memory), its libraries' own workspaces, and NCCL's buffers.
_WORDS = re.compile(
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)"
    r"|CUDA( driver)? error: out of memory|CUDA ran out of memory|Registering memory failed with cudaError: 2\b"
    r"|\bCU[A-Z]+_\w*ALLOC(ATION)?_FAILED"
    r"|Cuda failure (\d+ )?'out of memory'"
)


class OutOfMemory(Exception):
    """In words for whoever set the job up. The process ends with status 1."""


@contextmanager
def explained(
    config: TrainerConfig, layout: Layout, device: torch.device, where: str, parameters: int
) -> Iterator[None]:
    """Turn an allocation that fails within into OutOfMemory. `where`: the rank's host and GPU; `parameters`: the
    model's, of all stages."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        asked = next((line for line in lines if _WORDS.search(line)), lines[0])
        ways = "".join(f"\n  - {way}" for way in ways_out(config, layout, parameters, _free_in_cache(device)))
        raise OutOfMemory(
            f"out of memory on {where}: {asked[:300]}\n{figures(device)}\nWhat needs less, the cheapest first:{ways}"
        ) from None


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(_WORDS.search(str(error)))


def ways_out(config: TrainerConfig, layout: Layout, parameters: int, cached: int = 0) -> Iterator[str]:
    """Keys to change and what each does. `cached`: bytes that the GPU's allocator holds and no tensor uses."""
    if cached:
        yield (
            f"the environment variable PYTORCH_ALLOC_CONF=expandable_segments:True: {cached / _GIB:.1f} GiB are held in"
            " pieces too small for what was asked"
        )
    micro, own = config.micro_batch_size, layout.accumulation
    if micro > 1:
        half = next(size for size in range(micro // 2, 0, -1) if micro % size == 0)
        yield (
            f"micro_batch_size {micro} -> {half}: batch_size stays {config.batch_size}, in {own * micro // half}"
            f" micro-batches of a rank in place of {own}"
        )
    if config.precision == "fp32":
        yield "precision fp32 -> bf16: activations take half"
    if config.model.kind != "images":
        chunk, tokens = config.memory.loss_chunk, micro * config.model.sequence_length
        if chunk is None or chunk > 256:
            known = f"{chunk}" if chunk else "none"
            yield f"memory.loss_chunk {known} -> 256: the logits of so many of {tokens} tokens stand at once"
    checkpointing = config.memory.activation_checkpointing
    if checkpointing != "full" and config.model.kind != "images":  # which have batch normalisation
        following = "selective or full" if checkpointing == "none" else "full"
        yield (
            f"memory.activation_checkpointing {checkpointing} -> {following}: activations are computed again in the"
            " backward pass, full at the cost of about a third more time"
        )
    state = parameters * _STATE_BYTES / layout.pipeline / layout.tensor / _GIB
    if config.parallel.data == "ddp" and layout.data > 1:
        yield (
            f"parallel.data ddp -> fsdp: weights, gradients and optimizer take {state:.2f} GiB on each rank, and would"
            f" take {state / layout.data:.2f} on each of {layout.data}"
        )
    elif config.parallel.data == "hsdp" and layout.replicate > 1:
        yield (
            f"parallel.data hsdp -> fsdp: weights, gradients and optimizer would be in {layout.data} pieces in place of"
            f" {layout.shard}"
        )
    if config.parallel.data != "ddp" and not config.parallel.reshard_after_forward:
        yield "parallel.reshard_after_forward false -> true: a layer's gathered weights go after its forward pass"
    yield f"more or larger chips: the model's weights, gradients and optimizer alone take {state:.2f} GiB unsplit"


def figures(device: torch.device) -> str:
    """The memory of the device, and what this process has of it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        others = max(0, total - free - reserved)
        return (
            f"The GPU has {total / _GIB:.2f} GiB: {allocated / _GIB:.2f} in tensors (at most"
            f" {torch.cuda.max_memory_allocated(device) / _GIB:.2f}), {(reserved - allocated) / _GIB:.2f} held for"
            " more,"
            f" {others / _GIB:.2f} used beside them (CUDA, NCCL, other processes), {free / _GIB:.2f} free"
        )
    known = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE))
    own = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/self/status"), re.MULTILINE))
    told = [
        f"{int(table[key]) / 2**20:.2f} GiB {words}"
        for table, key, words in (
            (known, "MemTotal", "in all"),
            (known, "MemAvailable", "available"),
            (own, "VmRSS", "resident in this process"),
            (own, "VmHWM", "at most so far"),
        )
        if key in table
    ]
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdecimal():
        told.append(f"{int(limit) / _GIB:.2f} GiB is the limit of its control group")
    return f"The host's memory: {', '.join(told) or 'not known'}"


def _free_in_cache(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return cached if cached > _FRAGMENTED * torch.cuda.get_device_properties(device).total_memory else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # no Linux, or no such control group
        return ""
