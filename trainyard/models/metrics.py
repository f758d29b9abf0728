"""One line of a job's metrics, and the results file of the built-in trainer."""

from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.training import TrainerConfig


class MetricLine(StrictModel):
    """Metrics of one optimizer step, written by rank 0 as one JSON line. Losses are in nats per token or per image.

    The durations of the phases, including checkpoints, are those of rank 0. Their sum is less than the duration of the
    step, because the time between phases, in which metrics are written, belongs to none of them.
    """

    time: float = Field(description="Unix time at the end of the step, seconds.")
    attempt: int = Field(ge=0, description="Number of the attempt that did the step.")
    step: int = Field(gt=0, description="Number of the optimizer step, from 1 over the whole run.")
    loss: float = Field(description="Mean training loss over all ranks, nats.")
    validation_loss: float | None = Field(None, description="Held-out loss, nats; null if this step has no evaluation.")
    learning_rate: float = Field(ge=0, description="Learning rate of the step.")
    gradient_norm: float | None = Field(
        ge=0, description="Global gradient norm before clipping; null if it was not finite and the step was skipped."
    )
    consumed: int = Field(
        gt=0,
        description="Samples consumed since the start of the run, or of the run that it resumes in the same order.",
    )
    samples_per_second: float = Field(gt=0, description="Samples of all ranks per second of the step.")
    tokens_per_second: float | None = Field(
        gt=0, description="Tokens of all ranks per second of the step; null for images."
    )
    step_seconds: float = Field(
        gt=0, description="Duration since the end of the previous step, without evaluation, seconds."
    )
    data_seconds: float = Field(ge=0, description="Time waiting for samples, seconds.")
    forward_seconds: float = Field(ge=0, description="Forward passes, seconds.")
    backward_seconds: float = Field(
        ge=0,
        description="Backward passes with communication, seconds; includes forward passes of a pipeline schedule.",
    )
    optimizer_seconds: float = Field(ge=0, description="Clipping and the optimizer's step, seconds.")
    checkpoint_seconds: float = Field(
        ge=0,
        description="Time by which saving checkpoints, started after the previous step, delayed this step, seconds.",
    )
    failed_checkpoints: int = Field(0, ge=0, description="Checkpoints that could not be saved so far in the attempt.")
    mfu: float | None = Field(
        ge=0,
        description="Model FLOPs utilization: FLOP/s of the model over the peak of the GPUs; null if unknown.",
    )
    bf16_mfu: float | None = Field(
        None, ge=0, description="In 8 or 4 bits: FLOP/s of the model over the bf16 peak of the GPUs; else none."
    )
    memory_gib: float = Field(
        gt=0, description="Peak memory of rank 0 so far: allocated on its GPU, or resident on a CPU, GiB."
    )
    reserved_gib: float | None = Field(
        None,
        ge=0,
        description="Peak memory that torch's allocator has reserved on the GPU of rank 0, GiB; null on CPUs.",
    )
    allocation_retries: int | None = Field(
        None,
        ge=0,
        description="Allocations on the GPU of rank 0 that freed cached memory first, so far: each stops the GPU.",
    )
    loss_scale: float | None = Field(None, gt=0, description="Scale of the fp16 loss; null in other precisions.")
    expert_load_imbalance: float | None = Field(
        None,
        ge=0,
        description="Largest share of an expert in the tokens of the step over the mean share, in the layer where it "
        "is largest: 1 if all experts have the same load; null without experts.",
    )
    skipped: bool = Field(False, description="Whether fp16 gradients overflowed, so that the step changed no weights.")

    @property
    def throughput(self) -> str:
        """Formatted throughput: tokens per second, or samples per second for images."""
        if self.tokens_per_second is None:
            return f"{self.samples_per_second:,.1f} samples/s"
        return f"{self.tokens_per_second:,.0f} tokens/s"


class Figures(StrictModel):
    """Speed and memory of the last attempt, without its first steps, which compile and fill caches."""

    steps: int = Field(gt=0, description="Number of steps in these figures.")
    step_seconds: float = Field(gt=0, description="Median duration of a step, seconds.")
    samples_per_second: float = Field(gt=0, description="Median samples per second of all ranks.")
    tokens_per_second: float | None = Field(gt=0, description="Median tokens per second of all ranks; null for images.")
    mfu: float | None = Field(ge=0, description="Median model FLOPs utilization; null if the peak is not known.")
    memory_gib: float = Field(
        gt=0, description="Peak memory of rank 0: allocated on its GPU, or resident on a CPU, GiB."
    )
    data_share: float = Field(ge=0, description="Share of the time in which rank 0 waited for samples.")
    checkpoint_share: float = Field(ge=0, description="Share of the time by which saving checkpoints delayed training.")


class Export(StrictModel):
    """Exported weights of a finished run."""

    uri: str = Field(description="S3 URI of the folder.")
    bytes: int = Field(gt=0, description="Size of the weights, bytes.")
    validation_loss: float = Field(
        description="Held-out loss of the model with these weights, nats: that of the run; if int8 is among the "
        "exports, that of each format in fp32, on the held-out samples of rank 0."
    )


class Results(StrictModel):
    """`results.json`: summary of a finished run of the built-in trainer."""

    run: str = Field(description="Run id.")
    steps: int = Field(gt=0, description="Number of optimizer steps.")
    world_size: int = Field(gt=0, description="Number of training processes.")
    first_loss: float = Field(description="Training loss of step 1, nats.")
    last_loss: float = Field(description="Training loss of the last step, nats.")
    validation_loss: float = Field(description="Held-out loss after the last step, nats.")
    samples: int = Field(gt=0, description="Samples trained on.")
    tokens: int | None = Field(gt=0, description="Tokens trained on; null for images.")
    seconds: float = Field(gt=0, description="Seconds of training in the last attempt.")
    figures: Figures | None = Field(description="Speed and memory; null if the last attempt completed no step.")
    parameters: int = Field(gt=0, description="Trainable parameters.")
    checkpoints: tuple[str, ...] = Field(description="URIs of the complete checkpoints, oldest first.")
    exports: dict[Literal["safetensors", "int8"], Export] = Field(
        default_factory=dict, description="Format -> weights, for each format in config.checkpoint.export."
    )
    data: str = Field(description="URI of the dataset.")
    config: TrainerConfig = Field(description="The configuration that ran.")
    code_sha256: str = Field(description="SHA-256 of the sources of the trainer.")
    versions: dict[str, str] = Field(description="Versions of Python and of the libraries.")
