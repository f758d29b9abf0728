"""GPU models of the hardware catalog with their peak performance. Data: `gpus.json`."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel


class GpuModel(StrictModel):
    """A GPU model."""

    model: str = Field(description="NVIDIA's model name.")
    compute_capability: str = Field(pattern=r"^\d+\.\d$", description="CUDA compute capability.")
    bf16_tflops: float | None = Field(description="Dense bf16 peak, TFLOP/s; null: no bf16 tensor cores.")
    fp16_tflops: float = Field(description="Dense fp16 peak with fp32 accumulation, TFLOP/s.")
    fp8_tflops: float | None = Field(description="Dense fp8 peak, TFLOP/s; null: no fp8 tensor cores.")
    fp4_tflops: float | None = Field(description="Dense fp4 peak, TFLOP/s; null: no fp4 tensor cores.")
    driver: Literal["open", "proprietary"] = Field(description="Kernel modules of the NVIDIA driver that it needs.")
    last_cuda: str | None = Field(
        pattern=r"^\d+\.\d$", description="Last CUDA release that supports it; null: every release."
    )


class _GpuModels(StrictModel):
    dated: str = Field(description="Day of the data, YYYY-MM-DD.")
    sources: tuple[str, ...] = Field(min_length=1, description="Sources of the data, one line for each kind of fact.")
    models: tuple[GpuModel, ...] = Field(min_length=1, description="The GPU models.")


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """Return the GPU models of `gpus.json`."""
    return _GpuModels.model_validate_json((Path(__file__).parent / "gpus.json").read_text()).models
