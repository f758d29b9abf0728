"""Matrix multiplication throughput of this node: one large product that fills the tensor cores of a GPU."""

import time
from collections.abc import Callable
from statistics import fmean, median

import torch

# 2 x 3 x 128 MiB in bf16, and 1.1 TFLOP: the clocks rise during the warm-up.
GPU_SIZE, GPU_WARMUP_SECONDS, GPU_ROUNDS = 8192, 1.0, 15
# Some 0.2 s: a CPU that other processes delay for a part of the time is delayed in this time, too.
CPU_SIZE, CPU_WARMUP_SECONDS, CPU_ROUNDS = 512, 0.0, 20


def measure_tflops(device: torch.device) -> float:
    """TFLOP/s of bf16 on a GPU (fp16 if its tensor cores do not support bf16), of small fp32 matrices on a CPU."""
    if device.type != "cuda":
        return _measure(CPU_SIZE, torch.float32, device, CPU_WARMUP_SECONDS, CPU_ROUNDS, lambda: None, fmean)
    supports_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
    dtype = torch.bfloat16 if supports_bf16 else torch.float16
    return _measure(GPU_SIZE, dtype, device, GPU_WARMUP_SECONDS, GPU_ROUNDS, lambda: torch.cuda.synchronize(device))


def _measure(
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    warmup_seconds: float,
    rounds: int,
    synchronize: Callable[[], None],
    average: Callable[[list[float]], float] = median,
) -> float:
    first, second = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty(size, size, device=device, dtype=dtype)
    warmup_end = time.perf_counter() + warmup_seconds
    while True:
        torch.mm(first, second, out=product)
        synchronize()
        if time.perf_counter() >= warmup_end:
            break
    durations = []
    for _ in range(rounds):
        started_at = time.perf_counter()
        torch.mm(first, second, out=product)
        synchronize()
        durations.append(time.perf_counter() - started_at)
    if not bool(torch.isfinite(product).all()):
        raise ArithmeticError(f"the product of two finite matrices on {device} is not finite")
    return 2 * size**3 / average(durations) / 1e12
