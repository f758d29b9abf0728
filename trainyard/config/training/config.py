"""One training job of the built-in trainer."""

from collections.abc import Iterator
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from trainyard.base import StrictModel
from trainyard.config.field_types import Integer, Number, validation_error
from trainyard.config.training.loggers import LoggersConfig
from trainyard.config.training.low_precision import LOW_PRECISIONS, LowPrecisionConfig, require_low_precision
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.config.training.parallel import Layout, ParallelConfig, parallel_layout, parallel_problems
from trainyard.errors import Problem


class OptimizerConfig(StrictModel):
    """AdamW or Muon with linear warm-up and a schedule of the learning rate."""

    kind: Literal["adamw", "muon"] = Field(
        "adamw",
        description="AdamW for all parameters; or Muon for the matrices in the blocks, and AdamW for all other "
        "parameters. Muon scales its updates to those of AdamW: the same learning rate is suitable.",
    )
    momentum: Number = Field(0.95, ge=0, lt=1, description="Momentum of muon.")
    learning_rate: Number = Field(3e-3, gt=0, description="Peak learning rate, reached after warm-up.")
    schedule: Literal["cosine", "wsd", "constant"] = Field(
        "cosine",
        description="Learning rate after warm-up: cosine decay over all steps; the peak, then linear decay over "
        "decay_steps (wsd: warmup, stable, decay); or the peak (constant).",
    )
    decay_steps: Integer | None = Field(
        None, gt=0, description="Last steps of the job, in which wsd decays; null: a tenth of steps."
    )
    min_learning_rate: Number | None = Field(
        None,
        ge=0,
        description="Learning rate at the last step with cosine and wsd, at most learning_rate; null: a tenth of it.",
    )
    warmup_steps: Integer | None = Field(
        None, ge=0, description="Steps of linear warm-up; null: a tenth of steps, at most 10."
    )
    weight_decay: Number = Field(0.1, ge=0, description="Decoupled weight decay, on matrices only.")
    beta1: Number = Field(0.9, ge=0, lt=1, description="AdamW's first moment decay.")
    beta2: Number = Field(0.95, ge=0, lt=1, description="AdamW's second moment decay.")
    clip_norm: Number = Field(1.0, gt=0, description="Global gradient norm above which gradients are scaled down.")

    @model_validator(mode="after")
    def _decay_steps_have_an_effect(self) -> Self:
        if self.decay_steps is not None and self.schedule != "wsd":
            raise validation_error(
                "decay_steps_without_wsd", f"is for the schedule wsd, and schedule is {self.schedule}", "decay_steps"
            )
        return self

    @model_validator(mode="after")
    def _floor_below_peak(self) -> Self:
        if self.last_learning_rate > self.learning_rate:
            raise validation_error(
                "learning_rate_below_minimum",
                f"is above learning_rate {self.learning_rate:g}",
                "min_learning_rate",
            )
        return self

    @property
    def last_learning_rate(self) -> float:
        """Learning rate at the last step of the schedules cosine and wsd."""
        return self.learning_rate / 10 if self.min_learning_rate is None else self.min_learning_rate


class MemoryConfig(StrictModel):
    """Settings that trade computation for GPU memory."""

    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none",
        description="Activations of a block that the backward pass recomputes: none, all except the results of matrix "
        "products, convolutions, attention and most collectives (selective), or all (full).",
    )
    loss_chunk_tokens: Integer | None = Field(
        2048,
        gt=0,
        description="Tokens whose logits are in memory at once; null: the whole micro-batch.",
    )
    compile: bool | None = Field(
        None, description="Apply torch.compile to each block and to the loss; null: on GPUs only."
    )
    snapshot: bool = Field(
        False,
        description="Record the allocations of each GPU, and save them to results/profiles/ when memory runs out.",
    )


class DataConfig(StrictModel):
    """Data loading."""

    streams: Integer = Field(
        64,
        gt=0,
        description="Parts of the dataset that are read in parallel. If it is a multiple of the data parallel ranks, "
        "each rank reads the same parts in every epoch, from its node's cache.",
    )
    shuffle_block_samples: Integer | None = Field(
        None, gt=0, description="Samples of a stream that are shuffled together; null: 65,536, or 1,024 images."
    )
    workers: Integer | None = Field(
        None,
        ge=0,
        description="Data loader workers of each rank; null: 0 for tokens; for images "
        "2 without GPU, else its share of the cores less one, at most 12.",
    )
    prefetch: Integer = Field(2, gt=0, description="Micro-batches that each worker prefetches.")
    cache_gib: Number | None = Field(
        None, gt=0, description="Size of a node's cache of shards, GiB; null: 90 % of the free disk space."
    )
    mask_probability: Number = Field(0.15, gt=0, lt=1, description="Share of masked tokens in the task masked.")
    separate_documents: bool = Field(
        True,
        description="Mask attention between documents in the same sequence. The last token of one has no target.",
    )


class CheckpointConfig(StrictModel):
    """Checkpoint interval, retention and export.

    The default of `mean_hours_between_failures` is the rate of "The Llama 3 Herd of Models", section 3.3.4,
    https://arxiv.org/abs/2407.21783: 419 unexpected interruptions in 54 days on 16,384 GPUs, 8 per node.
    """

    interval_steps: Integer | None = Field(
        None,
        gt=0,
        description="Steps between checkpoints; null: interval_seconds. The last step always saves one.",
    )
    interval_seconds: Number | None = Field(
        None,
        gt=0,
        description="Seconds between checkpoints; null, and no interval_steps: the optimum for the measured time of a "
        "save and mean_hours_between_failures, from 60 seconds to 30 minutes.",
    )
    mean_hours_between_failures: Number = Field(
        6300,
        gt=0,
        description="Mean hours between failures of one node that stop the job, for the default interval. Default: "
        "the rate of the training of Llama 3.",
    )
    asynchronous: bool = Field(True, description="Whether training continues while a checkpoint is written.")
    memory_copies: bool = Field(
        True,
        description="Keep the newest state also in the host memory of the nodes, from which the next attempt resumes. "
        "They are off on all nodes if they do not fit into half of the available memory, or into the free space of "
        "/dev/shm, of one.",
    )
    memory_interval_steps: Integer | None = Field(
        None,
        gt=0,
        description="Steps between copies in host memory; null: as often as they delay training by at most 2 %.",
    )
    keep_last: Integer | None = Field(None, gt=0, description="Number of newest checkpoints to keep; null: all.")
    keep_every_steps: Integer | None = Field(
        None,
        gt=0,
        description="Also keep, for each multiple n of this number of steps, the first checkpoint of step n or later.",
    )
    export: tuple[Literal["safetensors", "int8"], ...] = Field(
        (),
        description="Formats exported to results/export/ by a finished run: safetensors, int8 (torchao).",
    )
    export_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Type of exported weights; null: that of model.path for the decoder, or float32."
    )

    @model_validator(mode="after")
    def _has_one_interval(self) -> Self:
        if self.interval_steps is not None and self.interval_seconds is not None:
            raise validation_error(
                "two_checkpoint_intervals",
                f"interval_steps {self.interval_steps} and interval_seconds {self.interval_seconds:g} are both set: "
                "remove one",
            )
        return self


class EvaluationConfig(StrictModel):
    """Held-out loss."""

    interval_steps: Integer = Field(20, gt=0, description="Steps between evaluations. The last step always has one.")
    batches: Integer = Field(
        1,
        gt=0,
        description="Batches of batch_size samples in an evaluation, the same samples in every layout.",
    )


class TimeoutsConfig(StrictModel):
    """Seconds without progress, by phase, after which the watchdog ends the job as hung."""

    setup_seconds: Number = Field(1800, gt=0, description="Limit of the setup, with the load of a checkpoint.")
    first_step_seconds: Number = Field(
        1800, gt=0, description="Limit of the first step of a process, which compiles, and of the trace of a profile."
    )
    step_seconds: Number | None = Field(
        None,
        gt=0,
        description="Limit of the other steps; null: 10 times the median of the last 50 steps, from 60 seconds to "
        "first_step_seconds.",
    )
    data_seconds: Number = Field(900, gt=0, description="Limit of the wait for a micro-batch, as in an outage of S3.")
    evaluation_seconds: Number = Field(900, gt=0, description="Limit of each batch of an evaluation.")
    checkpoint_seconds: Number = Field(
        900, gt=0, description="Limit of the wait for a save, which may be repeated in an outage of S3."
    )

    @property
    def longest_seconds(self) -> float:
        """Longest limit."""
        others = (self.setup_seconds, self.data_seconds, self.evaluation_seconds, self.checkpoint_seconds)
        return max(self.first_step_seconds, self.step_seconds or 0, *others)


class ProfileConfig(StrictModel):
    """Traces of torch.profiler under results/profiles/."""

    first_step: Integer = Field(gt=0, description="First traced step.")
    steps: Integer = Field(3, gt=0, description="Number of traced steps.")
    ranks: tuple[Integer, ...] = Field((0,), min_length=1, description="Traced ranks.")


LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class LoraConfig(StrictModel):
    """Low-rank adaptation: the weights are frozen, and two small matrices per linear layer are trained."""

    rank: Integer = Field(16, gt=0, description="Rank of the matrices.")
    alpha: Number = Field(32.0, gt=0, description="The output of the matrices is multiplied by alpha / rank.")
    dropout: Number = Field(0.0, ge=0, lt=1, description="Dropout of the input of the matrices.")
    targets: tuple[LoraTarget, ...] = Field(
        get_args(LoraTarget), min_length=1, description="Linear layers of a block that are adapted."
    )


class TrainerConfig(StrictModel):
    """One training job of the built-in trainer."""

    model: ModelConfig = Field(default_factory=DecoderConfig, description="The model.")
    lora: LoraConfig | None = Field(
        None, description="Low-rank adaptation of the decoder's weights in model.path; null: all weights are trained."
    )
    parallel: ParallelConfig = Field(default_factory=ParallelConfig, description="Parallelism over the ranks.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="Optimizer and schedule.")
    memory: MemoryConfig = Field(default_factory=MemoryConfig, description="Memory settings.")
    data: DataConfig = Field(default_factory=DataConfig, description="Data loading.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Checkpoints and exports.")
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="Held-out loss.")
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig, description="Limits of the watchdog.")
    loggers: LoggersConfig = Field(
        default_factory=LoggersConfig, description="Services that get the metrics, besides the files of the run."
    )
    profile: ProfileConfig | None = Field(
        None, description="Traced steps; null: only on request, by the file PROFILE_REQUEST."
    )
    steps: Integer = Field(60, gt=0, description="Optimizer steps of the run.")
    batch_size: Integer = Field(
        32, gt=0, description="Samples per optimizer step, over all ranks: the global batch size."
    )
    micro_batch_size: Integer = Field(
        4,
        gt=0,
        description="Samples per forward pass on one rank. A rank accumulates the gradients of batch_size / "
        "(micro_batch_size x data parallel ranks) micro-batches.",
    )
    precision: Literal["fp32", "bf16", "fp16", "float8", "mxfp8", "nvfp4"] = Field(
        "bf16",
        description="Precision of the forward and backward pass. Mixed precision: parameters, gradient sums and "
        "optimizer states are fp32, except the frozen weights of lora. float8, mxfp8 and nvfp4 (torchao): linear "
        "layers of the blocks have matrix products of FP8, MXFP8 or NVFP4 inputs, all else is bf16.",
    )
    low_precision: LowPrecisionConfig = Field(
        default_factory=LowPrecisionConfig, description="Settings of the precisions float8, mxfp8 and nvfp4."
    )
    seed: Integer = Field(1234, ge=0, lt=2**63, description="Seed of the initial weights and of the data order.")
    deterministic: bool | None = Field(
        None, description="Bit-identical results in every run on the same ranks, slower on GPUs; null: on CPUs only."
    )
    recovery: Literal["restart", "in_process"] = Field(
        "restart",
        description="After a signal ends a rank: restart all ranks from the newest saved state, or replace that rank "
        "(in_process): the others keep their processes, and the new rank copies their state. Needs the whole model "
        "on each rank (parallel.data ddp without tensor and pipeline parallelism), and at least two ranks.",
    )
    threads: Integer | None = Field(
        None, gt=0, description="CPU threads of a process; null: CPU cores of the node / its processes."
    )

    @model_validator(mode="after")
    def _low_precision_is_supported(self) -> Self:
        if self.precision in LOW_PRECISIONS:
            settings = self.low_precision, self.model, self.parallel, self.micro_batch_size
            require_low_precision(self.precision, *settings)
        return self

    @model_validator(mode="after")
    def _decay_follows_warmup(self) -> Self:
        optimizer = self.optimizer
        if optimizer.decay_steps is not None and optimizer.decay_steps + (optimizer.warmup_steps or 0) > self.steps:
            reason = f"with warmup_steps {optimizer.warmup_steps or 0} is longer than steps {self.steps}: reduce it"
            raise validation_error("decay_longer_than_job", reason, "optimizer.decay_steps")
        return self

    @model_validator(mode="after")
    def _async_tensor_has_an_effect(self) -> Self:
        if self.parallel.async_tensor and (self.parallel.tensor == 1 or self.memory.compile is False):
            cause = "parallel.tensor is 1" if self.parallel.tensor == 1 else "memory.compile is false"
            reason = f"needs tensor parallelism and compiled blocks, and {cause}: remove it"
            raise validation_error("async_tensor_without_effect", reason, "parallel.async_tensor")
        return self

    @model_validator(mode="after")
    def _muon_is_supported(self) -> Self:
        if self.optimizer.kind != "muon":
            return self
        if self.precision == "fp16":
            raise validation_error("muon_unsupported", "does not support precision fp16: set adamw", "optimizer.kind")
        has_experts = isinstance(self.model, DecoderConfig) and self.model.experts is not None
        if self.lora is not None or self.model.kind == "images" or has_experts:
            other = "experts" if has_experts else "lora" if self.lora is not None else "model.kind images"
            raise validation_error("muon_unsupported", f"does not support {other}: set adamw", "optimizer.kind")
        return self

    @model_validator(mode="after")
    def _lora_is_supported(self) -> Self:
        if self.lora is None:
            return self
        reason = None
        if not isinstance(self.model, DecoderConfig):
            reason = f"is for the built-in decoder, and model.kind is {self.model.kind}: remove it"
        elif not self.model.weights:
            reason = "adapts trained weights: set model.path, and model.weights to true"
        elif self.parallel.tensor > 1:
            reason = f"needs parallel.tensor 1, and it is {self.parallel.tensor}"
        elif self.precision in ("fp16", *LOW_PRECISIONS):
            reason = f"needs precision bf16 or fp32, and it is {self.precision}"
        if reason is not None:
            raise validation_error("lora_unsupported", reason, "lora")
        return self

    @model_validator(mode="after")
    def _experts_are_supported(self) -> Self:
        if not isinstance(self.model, DecoderConfig) or self.model.experts is None:
            return self
        adapted = sorted({"gate_proj", "up_proj", "down_proj"} & set(self.lora.targets if self.lora else ()))
        if "int8" in self.checkpoint.export:
            reason = "int8 is for linear layers, and the experts have most of the weights: remove it"
            raise validation_error("experts_unsupported", reason, "checkpoint.export")
        if adapted:
            targets = ", ".join(name for name in self.lora.targets if name not in adapted) if self.lora else ""
            reason = f"experts are not adapted: set it to [{targets}]"
            raise validation_error("experts_unsupported", reason, "lora.targets")
        return self

    @property
    def shape(self) -> dict[str, Any]:
        """Settings that determine names, sizes and use of the trained weights, as JSON values."""
        return self.model.shape | ({} if self.lora is None else {"lora": self.lora.model_dump(mode="json")})

    @property
    def shuffle_block_samples(self) -> int:
        """Samples of a stream that are shuffled together. An image is some hundred times larger than a text sample."""
        return self.data.shuffle_block_samples or (1024 if self.model.task == "images" else 65_536)

    def problems(self, world_size: int, per_node: int) -> list[Problem]:
        """Return why `world_size` processes, `per_node` on each node, cannot run this configuration.

        Keys are relative to this configuration.
        """
        batch = (self.batch_size, self.micro_batch_size)
        return [
            *parallel_problems(self.parallel, self.model, *batch, world_size, per_node),
            *self._profile_problems(world_size),
            *self._recomputation_problems(),
            *self._recovery_problems(world_size),
        ]

    def _recovery_problems(self, world_size: int) -> Iterator[Problem]:
        if self.recovery == "restart":
            return
        fix = "Set it to restart, or train with parallel.data ddp, tensor 1 and pipeline 1 on at least 2 processes"
        if self.parallel.sharded:
            parallel = self.parallel
            kinds = f"parallel.data is {parallel.data}, tensor {parallel.tensor}, pipeline {parallel.pipeline}"
            reason = f"needs the whole model on each rank, so that a new rank can copy it from another: {kinds}"
        elif world_size == 1:
            reason = "needs another process whose state a new rank can copy"
        else:
            return
        yield Problem("recovery", self.recovery, reason, fix, "recovery_unsupported_by_layout")

    def _recomputation_problems(self) -> Iterator[Problem]:
        checkpointing = self.memory.activation_checkpointing
        if self.model.kind == "images" and checkpointing != "none":
            reason = "recomputation would update the statistics of an image model's batch normalization twice"
            fix = "Remove it, and reduce micro_batch_size to save memory"
            yield Problem("memory.activation_checkpointing", checkpointing, reason, fix, "recomputation_unsupported")

    def _profile_problems(self, world_size: int) -> Iterator[Problem]:
        if self.profile is None:
            return
        if (first := self.profile.first_step) > self.steps:
            yield Problem("profile.first_step", first, f"steps is {self.steps}", "Reduce it", "profile_after_last_step")
        absent = [rank for rank in self.profile.ranks if not 0 <= rank < world_size]
        if absent:
            reason = f"rank {absent[0]} does not exist among {world_size} processes"
            yield Problem("profile.ranks", list(self.profile.ranks), reason, "Count ranks from 0", "rank_out_of_range")

    def layout(self, world_size: int, per_node: int) -> Layout:
        """Return the parallel layout of a configuration without problems."""
        return parallel_layout(self.parallel, self.batch_size, self.micro_batch_size, world_size, per_node)
