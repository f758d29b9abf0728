"""Bus bandwidth of an all-reduce: the rate of each link, independent of the number of processes.

busbw = 2 (n-1)/n x bytes / seconds, as defined by nccl-tests:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

GPU_BYTES, GPU_WARMUP_ROUNDS, GPU_ROUNDS = 1 << 30, 5, 10
CPU_BYTES, CPU_WARMUP_ROUNDS, CPU_ROUNDS = 4 << 20, 1, 3


def bus_bandwidth(processes: int, size: int, seconds: float) -> float:
    """Bus bandwidth of an all-reduce of `size` bytes, GB/s."""
    return 2 * (processes - 1) / processes * size / seconds / 1e9


def measure_bandwidth(device: torch.device) -> float:
    """Bus bandwidth over the default group, GB/s. Raises ArithmeticError if the sum is wrong."""
    on_gpu = device.type == "cuda"
    size = GPU_BYTES if on_gpu else CPU_BYTES
    warmup, rounds = (GPU_WARMUP_ROUNDS, GPU_ROUNDS) if on_gpu else (CPU_WARMUP_ROUNDS, CPU_ROUNDS)
    synchronize: Callable[[], None] = (lambda: torch.cuda.synchronize(device)) if on_gpu else (lambda: None)
    data = torch.empty(size // 4, device=device)
    processes = dist.get_world_size()
    durations = []
    for _ in range(warmup + rounds):
        data.fill_(1.0)
        synchronize()
        started_at = time.perf_counter()
        dist.all_reduce(data)
        synchronize()
        durations.append(time.perf_counter() - started_at)
    if not bool((data == processes).all()):
        raise ArithmeticError(
            f"an all-reduce of 1 over {processes} processes is not {processes} in all elements on {device}"
        )
    return bus_bandwidth(processes, size, median(durations[warmup:]))
