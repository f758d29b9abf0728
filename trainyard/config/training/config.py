"""One training job of the built-in trainer."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from trainyard.base import Contract, Problem
from trainyard.config.numbers import Number, Whole
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.config.training.parallel import Layout, ParallelConfig, layout, misfits


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


class MemoryConfig(Contract):
    """What is computed again, or piece by piece, rather than kept."""

    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none",
        description="What of a block's forward pass is computed again in the backward pass: nothing, all but matrix "
        "products and attention, or all.",
    )
    loss_chunk: Whole | None = Field(
        1024, gt=0, description="Tokens whose logits stand at once; none: those of the whole micro-batch."
    )
    compile: bool | None = Field(None, description="torch.compile, block by block; none: on GPUs.")


class DataConfig(Contract):
    """How samples come to a rank."""

    streams: Whole = Field(
        64,
        gt=0,
        description="Parts into which the dataset is cut and which are read side by side. Where it is a multiple of "
        "the ranks that share the batch, each rank reads the same parts in every epoch, from its node's cache.",
    )
    shuffle_block: Whole | None = Field(
        None, gt=0, description="Samples of a stream that are shuffled among themselves; none: 65,536, 1,024 of images."
    )
    workers: Whole | None = Field(
        None, ge=0, description="Processes that prepare a rank's samples; none: 0 for tokens, 4 for images (2 on CPUs)."
    )
    prefetch: Whole = Field(2, gt=0, description="Micro-batches made ready ahead, of each worker.")
    cache_gib: Number | None = Field(
        None, gt=0, description="Size of a node's cache of shards; none: nine tenths of what is free there."
    )
    mask_probability: Number = Field(0.15, gt=0, lt=1, description="Share of tokens to predict in the task masked.")
    images: Literal["torchvision", "dali"] = Field(
        "torchvision", description="What decodes and augments images; NVIDIA's DALI on GPUs, where it is installed."
    )


class CheckpointConfig(Contract):
    """When checkpoints are saved, how, and which of them stay."""

    every: Whole = Field(20, gt=0, description="Steps between checkpoints; the last step always saves one.")
    asynchronous: bool = Field(True, description="Training goes on while one is written.")
    keep: Whole | None = Field(None, gt=0, description="Newest ones that stay; none: all.")
    keep_every: Whole | None = Field(None, gt=0, description="Those of every so many steps stay, too.")
    export: tuple[Literal["safetensors", "int8"], ...] = Field(
        (), description="What the finished run leaves under results/export/: weights, and weights in 8 bits by torchao."
    )


class EvaluationConfig(Contract):
    """Held-out loss."""

    every: Whole = Field(20, gt=0, description="Steps between held-out losses; the last step always has one.")
    batches: Whole = Field(
        1, gt=0, description="Batches of batch_size samples in one held-out loss: the same ones in every layout."
    )


class ProfileConfig(Contract):
    """A trace by torch.profiler, under results/profiles/."""

    first_step: Whole = Field(gt=0, description="First step that is traced.")
    steps: Whole = Field(3, gt=0, description="Steps that are traced.")
    ranks: tuple[Whole, ...] = Field((0,), min_length=1, description="Ranks that are traced.")


class TrainerConfig(Contract):
    """One training job of the built-in trainer."""

    model: ModelConfig = Field(default_factory=DecoderConfig, description="The model, of one of three kinds.")
    parallel: ParallelConfig = Field(default_factory=ParallelConfig, description="How it is spread over the ranks.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="Optimizer and schedule.")
    memory: MemoryConfig = Field(default_factory=MemoryConfig, description="What is traded for memory.")
    data: DataConfig = Field(default_factory=DataConfig, description="How samples come.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Checkpoints and exports.")
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="Held-out loss.")
    profile: ProfileConfig | None = Field(
        None, description="Steps to trace; also on request, by the file PROFILE_REQUEST."
    )
    steps: Whole = Field(60, gt=0, description="Optimizer steps of the whole run.")
    batch_size: Whole = Field(32, gt=0, description="Samples per optimizer step, over all ranks.")
    micro_batch_size: Whole = Field(4, gt=0, description="Samples per forward pass on one rank.")
    precision: Literal["fp32", "bf16", "fp16", "float8"] = Field(
        "bf16",
        description="Type of forward and backward; weights and their updates are fp32. float8 (torchao): matrix "
        "products, the rest in bf16, on GPUs that have it.",
    )
    seed: Whole = Field(1234, ge=0, lt=2**63, description="Seed of weights and data order.")
    deterministic: bool | None = Field(
        None, description="The same bits in every run on the same ranks, at the cost of speed on GPUs; none: on CPUs."
    )
    timeout_seconds: Whole = Field(300, gt=0, description="Seconds after which a hung collective ends the job.")
    threads: Whole | None = Field(None, gt=0, description="CPU threads per process; default: cores over processes.")

    @model_validator(mode="after")
    def _float8_has_what_it_needs(self) -> Self:
        if self.precision != "float8":
            return self
        if self.model.kind != "decoder":
            raise ValueError("precision float8 is for the built-in decoder")
        # What torch._scaled_mm multiplies: a matrix's sides, which tensor parallelism cuts, and for a weight's gradient
        # the tokens of a micro-batch.
        model, pieces, odd = self.model, self.parallel.tensor, []
        of_keys = model.kv_heads * (model.dim // model.heads)
        for name, size in (("dim", model.dim), ("hidden", model.hidden), ("kv_heads x dim / heads", of_keys)):
            if size % (16 * pieces):
                odd.append(f"{name} {size}" + (f" / parallel.tensor {pieces}" if pieces > 1 else ""))
        if (tokens := self.micro_batch_size * model.sequence_length) % 16:
            odd.append(f"micro_batch_size x sequence_length {tokens}")
        if odd:
            raise ValueError(f"precision float8 needs multiples of 16, and the model has {', '.join(odd)}")
        return self

    @property
    def shuffle_block(self) -> int:
        """Samples; an image's file is some hundred times as large as a sample of text."""
        return self.data.shuffle_block or (1024 if self.model.task == "images" else 65_536)

    def misfits(self, world_size: int, per_node: int) -> list[Problem]:
        """Why so many processes, `per_node` on each node, can't run it. Keys are relative to the trainer's own."""
        found = misfits(self.parallel, self.model, self.batch_size, self.micro_batch_size, world_size, per_node)
        return [*found, *self._untraceable(world_size), *self._counted_twice()]

    def _counted_twice(self) -> Iterator[Problem]:
        checkpointing = self.memory.activation_checkpointing
        if self.model.kind == "images" and checkpointing != "none":
            why = "an image model's batch normalisation would count twice what is computed again"
            fix = "Leave it out, and lower micro_batch_size where memory is short"
            yield Problem(key="memory.activation_checkpointing", value=checkpointing, why=why, fix=fix)

    def _untraceable(self, world_size: int) -> Iterator[Problem]:
        if self.profile is None:
            return
        if (first := self.profile.first_step) > self.steps:
            yield Problem(key="profile.first_step", value=first, why=f"steps is {self.steps}", fix="Lower it")
        absent = [rank for rank in self.profile.ranks if not 0 <= rank < world_size]
        if absent:
            why = f"there is no rank {absent[0]} among {world_size} processes"
            yield Problem(key="profile.ranks", value=list(self.profile.ranks), why=why, fix="Count ranks from 0")

    def layout(self, world_size: int, per_node: int) -> Layout:
        """Of a configuration without misfits."""
        return layout(self.parallel, self.batch_size, self.micro_batch_size, world_size, per_node)
