"""One line of a job's metrics, and the results file that the built-in trainer leaves."""

from pydantic import Field

from contract.base import Contract
from contract.training import TrainerConfig


class MetricLine(Contract):
    """What rank 0 writes after each optimizer step, one JSON object a line."""

    time: float = Field(description="Unix time at the end of the step, seconds.")
    attempt: int = Field(ge=0, description="Attempt of the run that made the step, counted by the controller.")
    step: int = Field(gt=0, description="Optimizer step, counted from 1 over the whole run.")
    loss: float = Field(description="Mean training loss over all ranks, nats per token.")
    validation_loss: float | None = Field(None, description="Held-out loss where one was taken, nats per token.")
    learning_rate: float = Field(ge=0, description="Learning rate of the step.")
    gradient_norm: float = Field(ge=0, description="Global gradient norm before clipping.")
    consumed: int = Field(gt=0, description="Sequences consumed since the run began.")
    tokens_per_second: float = Field(gt=0, description="Tokens over all ranks per second of the step.")
    step_seconds: float = Field(gt=0, description="Duration of the step, seconds.")


class Results(Contract):
    """`results.json`: what a finished run of the built-in trainer was."""

    run: str = Field(description="Run id.")
    steps: int = Field(gt=0, description="Optimizer steps done.")
    world_size: int = Field(gt=0, description="Processes that trained.")
    first_loss: float = Field(description="Training loss of step 1, nats per token.")
    last_loss: float = Field(description="Training loss of the last step, nats per token.")
    validation_loss: float = Field(description="Held-out loss after the last step, nats per token.")
    tokens: int = Field(gt=0, description="Tokens trained on.")
    seconds: float = Field(gt=0, description="Seconds of training in the last attempt.")
    parameters: int = Field(gt=0, description="Trainable parameters.")
    checkpoints: tuple[str, ...] = Field(description="URIs of the complete checkpoints, oldest first.")
    data: str = Field(description="URI of the dataset.")
    config: TrainerConfig = Field(description="The configuration that ran.")
    code_sha256: str = Field(description="SHA-256 over the trainer's own sources.")
    versions: dict[str, str] = Field(description="Versions of Python and of the libraries that ran.")
