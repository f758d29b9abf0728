"""One line of a job's metrics, and the results file that the built-in trainer leaves."""

from typing import Literal

from pydantic import Field

from trainyard.base import Contract
from trainyard.config.training import TrainerConfig


class MetricLine(Contract):
    """What rank 0 writes after each optimizer step, one JSON object a line. Losses are in nats, of a token or an image.

    The phases, checkpoints among them, are rank 0's and add up to less than the step: what lies between them (metrics
    are written there) is in none.
    """

    time: float = Field(description="Unix time at the end of the step, seconds.")
    attempt: int = Field(ge=0, description="Attempt of the run that made the step, counted by the controller.")
    step: int = Field(gt=0, description="Optimizer step, counted from 1 over the whole run.")
    loss: float = Field(description="Mean training loss over all ranks, nats.")
    validation_loss: float | None = Field(None, description="Held-out loss where one was taken, nats.")
    learning_rate: float = Field(ge=0, description="Learning rate of the step.")
    gradient_norm: float | None = Field(
        ge=0, description="Global gradient norm before clipping; none where it was not finite and the step was skipped."
    )
    consumed: int = Field(
        gt=0, description="Samples consumed since the run began, or the one that it goes on from in the same order."
    )
    samples_per_second: float = Field(gt=0, description="Samples over all ranks per second of the step.")
    tokens_per_second: float | None = Field(gt=0, description="Tokens likewise; none for images.")
    step_seconds: float = Field(
        gt=0, description="From the end of the step before to that of this one, held-out losses left out, seconds."
    )
    data_seconds: float = Field(ge=0, description="Of it, waiting for samples, seconds.")
    forward_seconds: float = Field(ge=0, description="Forward passes, seconds.")
    backward_seconds: float = Field(
        ge=0,
        description="Backward passes with what they exchange, seconds; a pipeline's schedule mixes forward into it.",
    )
    optimizer_seconds: float = Field(ge=0, description="Clipping and the optimizer's step, seconds.")
    checkpoint_seconds: float = Field(
        ge=0, description="What saving checkpoints, begun after the step before, has held this one up, seconds."
    )
    mfu: float | None = Field(
        ge=0,
        description="Model FLOPs utilization: the model's FLOP/s over the chips' peak; none where it is not known.",
    )
    memory_gib: float = Field(
        gt=0, description="Rank 0's peak so far: allocated on its GPU, or resident on a CPU, GiB."
    )
    loss_scale: float | None = Field(None, gt=0, description="Factor on fp16's loss; none in other precisions.")
    skipped: bool = Field(False, description="Whether fp16's gradients overflowed, so that no weight was changed.")

    @property
    def speed(self) -> str:
        """In words: tokens, or images, per second."""
        if self.tokens_per_second is None:
            return f"{self.samples_per_second:,.1f} samples/s"
        return f"{self.tokens_per_second:,.0f} tokens/s"


class Figures(Contract):
    """Of the steps of the last attempt, its first ones left out: they compile, and fill caches."""

    steps: int = Field(gt=0, description="Steps that were counted.")
    step_seconds: float = Field(gt=0, description="Median duration of a step, seconds.")
    samples_per_second: float = Field(gt=0, description="Median over all ranks.")
    tokens_per_second: float | None = Field(gt=0, description="Median over all ranks; none for images.")
    mfu: float | None = Field(ge=0, description="Median model FLOPs utilization; none where the peak is not known.")
    memory_gib: float = Field(gt=0, description="Rank 0's peak: allocated on its GPU, or resident on a CPU, GiB.")
    data_share: float = Field(ge=0, description="Share of all their time that rank 0 waited for samples.")
    checkpoint_share: float = Field(ge=0, description="Share likewise that saving checkpoints held training up.")


class Export(Contract):
    """The weights of a finished run, as others load them."""

    uri: str = Field(description="Its folder.")
    bytes: int = Field(gt=0, description="Size of the weights, bytes.")
    validation_loss: float = Field(
        description="Held-out loss of the model with these weights, nats: the run's own; where int8 is among the "
        "exports, both formats' in fp32, of the samples that rank 0 holds out."
    )


class Results(Contract):
    """`results.json`: what a finished run of the built-in trainer was."""

    run: str = Field(description="Run id.")
    steps: int = Field(gt=0, description="Optimizer steps done.")
    world_size: int = Field(gt=0, description="Processes that trained.")
    first_loss: float = Field(description="Training loss of step 1, nats.")
    last_loss: float = Field(description="Training loss of the last step, nats.")
    validation_loss: float = Field(description="Held-out loss after the last step, nats.")
    samples: int = Field(gt=0, description="Samples trained on.")
    tokens: int | None = Field(gt=0, description="Tokens trained on; none for images.")
    seconds: float = Field(gt=0, description="Seconds of training in the last attempt.")
    figures: Figures | None = Field(description="Speed and memory; none where the last attempt made no step.")
    parameters: int = Field(gt=0, description="Trainable parameters.")
    checkpoints: tuple[str, ...] = Field(description="URIs of the complete checkpoints, oldest first.")
    exports: dict[Literal["safetensors", "int8"], Export] = Field(
        default_factory=dict, description="Format -> the weights that config.checkpoint.export asked for."
    )
    data: str = Field(description="URI of the dataset.")
    config: TrainerConfig = Field(description="The configuration that ran.")
    code_sha256: str = Field(description="SHA-256 over the trainer's own sources.")
    versions: dict[str, str] = Field(description="Versions of Python and of the libraries that ran.")
