"""How fast this node multiplies matrices: one large product, as it fills a GPU's tensor cores."""

import time
from collections.abc import Callable
from statistics import median

import torch

# 2 x 3 x 128 MiB in bf16, and 1.1 TFLOP: the clocks rise within the warm-up.
GPU_SIZE, GPU_WARM_SECONDS, GPU_TIMES = 8192, 1.0, 15
CPU_SIZE, CPU_WARM_SECONDS, CPU_TIMES = 256, 0.0, 3


def tflops(device: torch.device) -> float:
    """TFLOP/s: bf16 on a GPU (fp16 where its tensor cores lack that), fp32 and small on a CPU."""
    if device.type != "cuda":
        return _measure(CPU_SIZE, torch.float32, device, CPU_WARM_SECONDS, CPU_TIMES, lambda: None)
    own = torch.cuda.get_device_capability(device) >= (8, 0)
    kind = torch.bfloat16 if own else torch.float16
    return _measure(GPU_SIZE, kind, device, GPU_WARM_SECONDS, GPU_TIMES, lambda: torch.cuda.synchronize(device))


def _measure(
    size: int, kind: torch.dtype, device: torch.device, warm: float, times: int, finish: Callable[[], None]
) -> float:
    left, right = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    product = torch.empty(size, size, device=device, dtype=kind)
    until = time.perf_counter() + warm
    while True:
        torch.mm(left, right, out=product)
        finish()
        if time.perf_counter() >= until:
            break
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        torch.mm(left, right, out=product)
        finish()
        taken.append(time.perf_counter() - began)
    if not bool(torch.isfinite(product).all()):
        raise ArithmeticError(f"a product of two finite matrices on {device} is not finite")
    return 2 * size**3 / median(taken) / 1e12
