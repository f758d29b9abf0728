"""Settings of the job and of its launch."""

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.field_types import (
    DATASET_SCHEME,
    DatasetName,
    Integer,
    Number,
    is_s3_uri,
)
from trainyard.config.shared_settings import JobSpec

KEEP_AFTER_FAILURE_MINUTES = 15.0  # time to correct a job; the nodes are billed meanwhile


class JobSettings(JobSpec):
    """The job: the built-in trainer (`train`), or a custom job (`source` and `command`)."""

    dataset: DatasetName | None = Field(
        None,
        description="Dataset under datasets/ in the data bucket (`trainyard data put`); null: the job reads the bucket "
        "of job.data, or no data.",
    )
    processes_per_node: Integer | None = Field(
        None, gt=0, description="Processes on each node; null: one per GPU, or one on CPU nodes."
    )
    source: str | None = Field(
        None,
        description="Folder of the custom job, relative to the folder of Pulumi.yaml; it may be outside, such as `..`. "
        "Files that .gitignore or .trainyardignore in this folder exclude are not uploaded. requirements.txt in this "
        "folder is installed in addition to the nodes' Python environment (see jobs.md).",
    )
    time_limit_minutes: Number = Field(
        1440.0,
        gt=0,
        description="Minutes after the launch, or after the scheduled start of a run, at which the workers are "
        "terminated.",
    )
    keep_nodes_minutes: Number | None = Field(
        None,
        ge=0,
        description="Minutes for which the nodes are kept after the job has ended, and billed, so that the next run "
        "starts on them. null: 0 after success, 15 after a failure of the job. They are never kept longer than "
        "time_limit_minutes after the launch.",
    )

    @property
    def keep_after_success_minutes(self) -> float:
        """Minutes for which the nodes are kept after success."""
        return self.keep_nodes_minutes or 0.0

    @property
    def keep_after_failure_minutes(self) -> float:
        """Minutes for which the nodes are kept after a failure of the job."""
        return KEEP_AFTER_FAILURE_MINUTES if self.keep_nodes_minutes is None else self.keep_nodes_minutes

    @property
    def model_dataset(self) -> str | None:
        """Name of the dataset of the data bucket that `model` names, if it does."""
        model = self.model or ""
        return model.removeprefix(DATASET_SCHEME) if model.startswith(DATASET_SCHEME) else None

    @property
    def limits(self) -> dict[str, float]:
        """Fields of trainyard.models.manifest.Limits that the job sets."""
        return {
            "time_limit_minutes": self.time_limit_minutes,
            "keep_after_success_minutes": self.keep_after_success_minutes,
            "keep_after_failure_minutes": self.keep_after_failure_minutes,
        }

    @property
    def s3_sources(self) -> dict[str, str]:
        """Setting -> S3 prefix of each bucket other than the data bucket that the job reads."""
        values = {"data": self.data, "model": self.model or ""}
        return {f"job.{key}": value for key, value in values.items() if is_s3_uri(value)}

    @property
    def datasets(self) -> dict[str, str]:
        """Setting -> name of each dataset of the data bucket that the job reads."""
        names = {"job.dataset": self.dataset, "job.model": self.model_dataset}
        return {key: name for key, name in names.items() if name is not None}

    @property
    def script(self) -> str | None:
        """The script of the custom job, relative to `source`; None for the built-in trainer."""
        return self.command[0] if self.command else None


class LaunchSettings(StrictModel):
    """The launch: when it starts a new run, and timeouts of the startup and of the lease."""

    again: str | Integer | None = Field(
        None,
        description="Any value; another value launches a new run with the next `pulumi up`, from step 0 unless "
        "`job.resume` is set.",
    )
    replace_running: bool = Field(
        False,
        description="Whether `pulumi up` may stop an active run, which a changed job, node software or network does.",
    )
    resume_replaced: bool = Field(
        True,
        description="Whether a run that replaces an active run starts from its newest checkpoint, unless `job.resume` "
        "is set.",
    )

    wait: bool | None = Field(
        None,
        description="Whether `pulumi up` returns when the job has started, or false: when all nodes are launched, "
        "which the controller then follows (`trainyard status --wait`). null: false where the environment variable CI "
        "is set, as CI systems do. Nodes that are added to an active run are always waited for.",
    )
    startup_timeout_minutes: Number = Field(
        45.0,
        gt=0,
        description="Minutes from the launch, or from the scheduled start of a run, until the job must have started. "
        "The wait for capacity does not count. If a Capacity Block starts later than this, the launch "
        "schedules the run.",
    )
    lease_minutes: Number = Field(
        20.0, ge=5, description="Minutes after which AWS terminates the workers unless the lease is renewed."
    )
    health_check_timeout_minutes: Number = Field(
        3.0,
        ge=0,
        description="Maximum minutes of the health check before the job (GPUs, versions, EFA, bandwidth); 0: no check.",
    )
    max_startup_replacements: Integer = Field(
        2,
        ge=0,
        description="Nodes that are replaced in one run because their startup failed. A failure that two nodes have "
        "ends the launch: it is not a fault of one node.",
    )
    replacement_minutes: Number = Field(
        45.0,
        gt=0,
        description="Minutes for which a run waits for replacements of lost nodes, and for their startup. Then it "
        "ends, after a last checkpoint, because its other nodes are billed.",
    )
