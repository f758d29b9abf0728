"""The models of GPU in the hardware catalog, and what each can do at best. Nodes have them, too."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.base import Contract


class Chip(Contract):
    """One model of GPU."""

    model: str = Field(description="NVIDIA's model name.")
    compute_capability: str = Field(pattern=r"^\d+\.\d$", description="CUDA compute capability.")
    bf16_tflops: float | None = Field(description="Dense peak, TFLOP/s; none where the tensor cores lack bf16.")
    fp16_tflops: float = Field(description="Dense peak, TFLOP/s, summed in fp32.")
    fp8_tflops: float | None = Field(description="Dense peak, TFLOP/s; none where the tensor cores lack fp8.")
    driver: Literal["open", "proprietary"] = Field(description="Kernel modules of the driver that it needs.")
    last_cuda: str | None = Field(
        pattern=r"^\d+\.\d$", description="Last CUDA that supports it; none where every CUDA to date does."
    )


class _Chips(Contract):
    dated: str = Field(description="Day of the data, YYYY-MM-DD.")
    sources: tuple[str, ...] = Field(min_length=1, description="Where the data is from, one line a kind of fact.")
    chips: tuple[Chip, ...] = Field(min_length=1, description="The models.")


@cache
def chips() -> tuple[Chip, ...]:
    """Those of `gpus.json`, as shipped."""
    return _Chips.model_validate_json((Path(__file__).parent / "gpus.json").read_text()).chips
