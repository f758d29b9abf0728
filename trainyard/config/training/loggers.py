"""Services that get the metrics of the built-in trainer in addition to its files."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainyard.base import StrictModel
from trainyard.config.field_types import validation_error
from trainyard.config.secret_patterns import find_credential


def _require_no_credential(value: str) -> str:
    if kind := find_credential(value):
        raise validation_error(
            "credential_in_uri",
            f"the value contains {kind}, and settings are plain text: set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, by job.secrets",
        )
    return value


class WandbConfig(StrictModel):
    """Metrics in Weights & Biases. The environment has WANDB_API_KEY, and WANDB_BASE_URL for another server."""

    project: str = Field(min_length=1, description="Project of the run.")
    entity: str | None = Field(None, min_length=1, description="User or team; null: the default of the API key.")
    name: str | None = Field(None, min_length=1, description="Name of the run; null: the run id.")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: into files, which are uploaded to results/wandb/ for `wandb sync`."
    )


class MlflowConfig(StrictModel):
    """Metrics in MLflow. The environment has MLFLOW_TRACKING_TOKEN, or a user and a password."""

    tracking_uri: Annotated[str, AfterValidator(_require_no_credential)] = Field(
        min_length=1, description="URL of the tracking server."
    )
    experiment: str = Field(min_length=1, description="Experiment of the run; it is created if it does not exist.")
    name: str | None = Field(None, min_length=1, description="Name of the run; null: the run id.")


class LoggersConfig(StrictModel):
    """Services that get the metrics in addition to metrics.jsonl, Prometheus and TensorBoard."""

    wandb: WandbConfig | None = Field(None, description="Weights & Biases; needs the package wandb.")
    mlflow: MlflowConfig | None = Field(None, description="MLflow; needs the package mlflow-skinny or mlflow.")
