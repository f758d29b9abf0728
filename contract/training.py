"""The built-in trainer's configuration, checked before money is spent and read again by the trainer."""

from typing import Literal, Self

from pydantic import Field, model_validator

from contract.base import Contract
from contract.numbers import Number, Whole


class ModelConfig(Contract):
    """A decoder-only transformer over bytes (RMSNorm, RoPE, SwiGLU, grouped-query attention)."""

    dim: Whole = Field(128, gt=0, description="Width of the residual stream.")
    layers: Whole = Field(4, gt=0, description="Number of decoder blocks.")
    heads: Whole = Field(4, gt=0, description="Number of query heads; divides dim.")
    kv_heads: Whole = Field(2, gt=0, description="Number of key and value heads; divides heads.")
    hidden: Whole = Field(384, gt=0, description="Width of the SwiGLU feed-forward layer.")
    vocabulary: Whole = Field(256, gt=1, description="Number of token ids; 256 for bytes.")
    sequence_length: Whole = Field(128, gt=1, description="Tokens per training sequence.")
    rope_theta: Number = Field(10_000.0, gt=0, description="Base of the rotary position embedding.")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise ValueError(f"dim {self.dim} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        return self


class OptimizerConfig(Contract):
    """AdamW with linear warm-up and cosine decay."""

    learning_rate: Number = Field(3e-3, gt=0, description="Peak learning rate, reached after warm-up.")
    min_learning_rate: Number = Field(3e-4, ge=0, description="Learning rate at the last step.")
    warmup_steps: Whole = Field(10, ge=0, description="Steps of linear warm-up.")
    weight_decay: Number = Field(0.1, ge=0, description="Decoupled weight decay, on matrices only.")
    beta1: Number = Field(0.9, ge=0, lt=1, description="AdamW's first moment decay.")
    beta2: Number = Field(0.95, ge=0, lt=1, description="AdamW's second moment decay.")
    clip_norm: Number = Field(1.0, gt=0, description="Global gradient norm above which gradients are scaled down.")

    @model_validator(mode="after")
    def _floor_below_peak(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate {self.min_learning_rate} is above learning_rate {self.learning_rate}")
        return self


class TrainerConfig(Contract):
    """One training job of the built-in trainer."""

    model: ModelConfig = Field(default_factory=ModelConfig, description="The model's shape.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="Optimizer and schedule.")
    steps: Whole = Field(60, gt=0, description="Optimizer steps of the whole run.")
    batch_size: Whole = Field(32, gt=0, description="Sequences per optimizer step, over all ranks.")
    micro_batch_size: Whole = Field(4, gt=0, description="Sequences per forward pass on one rank.")
    precision: Literal["fp32", "bf16"] = Field("bf16", description="Autocast type of forward and backward.")
    seed: Whole = Field(1234, ge=0, description="Seed of weights and data order.")
    checkpoint_every: Whole = Field(20, gt=0, description="Steps between checkpoints; the last step always saves one.")
    eval_every: Whole = Field(20, gt=0, description="Steps between held-out losses; the last step always has one.")
    eval_batches: Whole = Field(4, gt=0, description="Micro-batches per rank in one held-out loss.")
    timeout_seconds: Whole = Field(300, gt=0, description="Seconds after which a hung collective ends the job.")
    threads: Whole | None = Field(None, gt=0, description="CPU threads per process; default: cores over processes.")

    def accumulation(self, world_size: int) -> int:
        """Micro-batches per rank and step. Raises ValueError when the batch can't be split so."""
        per_pass = self.micro_batch_size * world_size
        if self.batch_size % per_pass:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}"
                f" x {world_size} processes"
            )
        return self.batch_size // per_pass
