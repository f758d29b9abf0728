"""The bus bandwidth of an all-reduce: what each link carries, whatever the number of processes.

busbw = 2 (n-1)/n x bytes / seconds, as nccl-tests has it:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

GPU_BYTES, GPU_WARM, GPU_TIMES = 1 << 30, 5, 10
CPU_BYTES, CPU_WARM, CPU_TIMES = 4 << 20, 1, 3


def bus_bandwidth(processes: int, size: int, seconds: float) -> float:
    """GB/s of an all-reduce of `size` bytes."""
    return 2 * (processes - 1) / processes * size / seconds / 1e9


def measure(device: torch.device) -> float:
    """GB/s over the default group. Raises ArithmeticError where the sum is not right."""
    on_gpu = device.type == "cuda"
    size, warm, times = (GPU_BYTES, GPU_WARM, GPU_TIMES) if on_gpu else (CPU_BYTES, CPU_WARM, CPU_TIMES)
    finish: Callable[[], None] = (lambda: torch.cuda.synchronize(device)) if on_gpu else (lambda: None)
    data = torch.empty(size // 4, device=device)
    processes = dist.get_world_size()
    taken = []
    for _ in range(warm + times):
        data.fill_(1.0)
        finish()
        began = time.perf_counter()
        dist.all_reduce(data)
        finish()
        taken.append(time.perf_counter() - began)
    if not bool((data == processes).all()):
        raise ArithmeticError(f"the sum of 1 over {processes} processes is not {processes} everywhere on {device}")
    return bus_bandwidth(processes, size, median(taken[warm:]))
