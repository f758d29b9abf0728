"""The job of a stack, and the deadlines of bringing it up."""

from pathlib import PurePosixPath

from pydantic import Field, field_validator

from trainyard.base import Contract
from trainyard.config.numbers import Number, Whole
from trainyard.config.settings.names import ContainerImage, DatasetName, JobName, ParameterName, RunId, VariableName
from trainyard.config.training import TrainerConfig


class JobSettings(Contract):
    """The job: the built-in trainer (`train`), or the user's own (`source` and `command`)."""

    name: JobName = Field(description="Name of the job, part of its run ids.")
    dataset: DatasetName = Field(description="Dataset under datasets/ in the data bucket: DATA_URI.")
    builtin_corpus: bool = Field(
        False,
        description="Fill an empty dataset with the built-in corpus: the sources of Python's standard library.",
    )
    processes_per_node: Whole | None = Field(
        None, gt=0, description="Worker processes on each node; none: one a GPU, or one on CPU nodes."
    )
    train: TrainerConfig | None = Field(None, description="Configuration of the built-in trainer.")
    source: str | None = Field(
        None,
        description="Folder of the user's job, relative to Pulumi.yaml; a .trainyardignore in it is honoured, and a "
        "requirements.txt is installed beside what the nodes' Python environment has.",
    )
    command: tuple[str, ...] | None = Field(
        None, min_length=1, description="Script in the source folder and its arguments, run by torchrun."
    )
    checkpoint_on_request: bool = Field(
        False,
        description="The user's job saves a checkpoint when the file CHECKPOINT_REQUEST appears, and then removes it: "
        "before its nodes leave, or others join. The built-in trainer always does.",
    )
    environment: dict[VariableName, str] = Field(
        default_factory=dict, description="Plain environment variables of the job."
    )
    container: ContainerImage | None = Field(
        None,
        description="Container image that the user's own job runs in, with the node's network, GPUs and EFA; its "
        "python has torch and what the job requires, and the nodes' role pulls it from ECR. None: the node's Python "
        "environment.",
    )
    secrets: dict[VariableName, ParameterName] = Field(
        default_factory=dict,
        description="Environment variable -> name of the SSM parameter with its value, under AWS's own key for SSM.",
    )
    resume: RunId | None = Field(None, description="Run whose newest checkpoint a new run starts from.")
    time_limit_minutes: Number = Field(
        1440.0, gt=0, description="Minutes after the launch at which the workers end in any case."
    )

    @field_validator("source")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is not None and (PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts):
            raise ValueError("must be a path below the folder of Pulumi.yaml")
        return value


class LaunchSettings(Contract):
    """Deadlines of bringing the cluster up."""

    bring_up_minutes: Number = Field(45.0, gt=0, description="Minutes from the launch until the job must have started.")
    lease_minutes: Number = Field(20.0, ge=5, description="Minutes after which AWS ends the workers unless renewed.")
    verify_minutes: Number = Field(
        3.0,
        ge=0,
        description="Minutes that a check of the nodes before the job may take (GPUs, versions, EFA, speed); 0: none.",
    )
