"""Settings of the data bucket, its KMS key and the shared file system."""

from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from trainyard.base import StrictModel
from trainyard.config.field_types import BucketName, Integer, KeyArn, validation_error

Throughput = Literal[125, 250, 500, 1000]
DEFAULT_THROUGHPUT: Throughput = 250
DEFAULT_BACKUP_RETENTION_DAYS = 7


class MetadataConfiguration(NamedTuple):
    """Metadata configuration of a file system, in the words of the FSx API. `iops` is set by USER_PROVISIONED only."""

    mode: Literal["AUTOMATIC", "USER_PROVISIONED"]
    iops: int | None = None


class StorageSettings(StrictModel):
    """The data bucket. `pulumi destroy` retains it with its configuration and its key."""

    bucket: BucketName | None = Field(
        None,
        description="Existing bucket, whose configuration is not changed. It belongs to one stack: the object "
        "trainyard-stack.txt names it. null: the stack creates a bucket.",
    )
    kms_key: KeyArn | None = Field(
        None,
        description="Existing KMS key for the bucket, root volumes and file system; null: the stack creates one with "
        "yearly rotation. An existing bucket must use it or the S3 managed key.",
    )
    noncurrent_version_days: Integer = Field(
        30, ge=1, description="Days for which deleted or overwritten objects can be restored."
    )
    archive_after_days: Integer | None = Field(
        90,
        ge=1,
        description="Days after the end of a run for which its newest checkpoint and its results stay readable. The "
        "next launch, stop or destroy then tags them, and S3 moves them to S3 Glacier Deep Archive. Never moved: the "
        "newest checkpoint and the newest results of the bucket, and a run that job.resume names. Older checkpoints of "
        "the built-in trainer move this many days after they were written. null: never.",
    )
    lock_results_days: Integer | None = Field(
        None,
        ge=1,
        le=36500,
        description="Days after the end of a run that succeeded for which S3 Object Lock (governance mode) keeps its "
        "results, runs/<run>/results/: these versions can be neither deleted nor overwritten. Enables Object Lock on "
        "the data bucket, which S3 cannot disable. null: no lock.",
    )
    access_log_bucket: BucketName | None = Field(
        None,
        description="Existing bucket of the same account and region to which S3 writes server access logs of the data "
        "bucket, below access-logs/<project>/<stack>/ (see deploy.md). null: no access logs.",
    )


class FsxSettings(StrictModel):
    """FSx for Lustre with SSD storage."""

    deployment_type: Literal["PERSISTENT_2", "SCRATCH_2"] = Field(
        "PERSISTENT_2",
        description="PERSISTENT_2 replaces failed disks; SCRATCH_2 is cheaper and does not. Some zones do not offer "
        "PERSISTENT_2: if CreateFileSystem refuses it, set another zone in capacity.zones, or SCRATCH_2.",
    )
    storage_capacity_gib: Integer = Field(1200, description="Storage capacity, GiB: 1200 or a multiple of 2400.")
    throughput_mbps_per_tib: Throughput | None = Field(
        None, description="Throughput of PERSISTENT_2, MB/s per TiB; null: 250. SCRATCH_2 always has 200."
    )
    data_repository: bool = Field(
        False,
        description="Data repository association of /datasets on the file system with datasets/ in the data bucket: "
        "FSx imports new, changed and deleted objects.",
    )
    export: bool = Field(
        False,
        description="Data repository association of /exports on the file system with exports/ in the data bucket: FSx "
        "exports new and changed files, not deletions.",
    )
    metadata_iops: Integer | Literal["automatic"] | None = Field(
        None,
        description="Metadata IOPS of PERSISTENT_2: 1500, 3000, 6000, 12000 or a multiple of 12000 up to 192000; "
        "automatic: by storage capacity. null: no metadata configuration, or automatic with efa. AWS bills IOPS above "
        "the automatic number, which the cost estimate does not include.",
    )
    efa: bool = Field(
        False,
        description="Elastic Fabric Adapter (EFA) between nodes and PERSISTENT_2. The storage capacity is a multiple "
        "of 38400, 19200, 9600 or 4800 GiB for 125, 250, 500 or 1000 MB/s per TiB. Nodes need Nitro v4, which p4d and "
        "g5 do not have.",
    )
    backup_retention_days: Integer | None = Field(
        None,
        ge=0,
        le=90,
        description="Retention of daily backups, days; null: 7 for PERSISTENT_2 without data_repository and export, "
        "else no backups, because AWS supports none.",
    )

    @field_validator("storage_capacity_gib")
    @classmethod
    def _allowed_capacity(cls, value: int) -> int:
        if value != 1200 and (value < 2400 or value % 2400):
            raise validation_error(
                "invalid_storage_capacity", "FSx for Lustre SSD storage capacity is 1200 GiB or a multiple of 2400 GiB"
            )
        return value

    @field_validator("metadata_iops")
    @classmethod
    def _allowed_iops(cls, value: int | str | None) -> int | str | None:
        # FSx API reference, CreateFileSystemLustreMetadataConfiguration.
        multiple = isinstance(value, int) and value % 12000 == 0 and 12000 <= value <= 192000
        if isinstance(value, int) and value not in (1500, 3000, 6000) and not multiple:
            raise validation_error(
                "invalid_metadata_iops", "metadata IOPS are 1500, 3000, 6000, or a multiple of 12000 up to 192000"
            )
        return value

    @property
    def metadata(self) -> MetadataConfiguration | None:
        """The metadata configuration, with the default applied; EFA requires one."""
        if isinstance(self.metadata_iops, int):
            return MetadataConfiguration("USER_PROVISIONED", self.metadata_iops)
        return MetadataConfiguration("AUTOMATIC") if self.metadata_iops or self.efa else None

    @property
    def linked(self) -> bool:
        """Whether the file system has a data repository association."""
        return self.data_repository or self.export

    @property
    def throughput(self) -> Throughput | None:
        """MB/s per TiB for CreateFileSystem; None for SCRATCH_2, which has no such parameter."""
        if self.deployment_type == "SCRATCH_2":
            return None
        return self.throughput_mbps_per_tib or DEFAULT_THROUGHPUT

    @property
    def effective_backup_retention_days(self) -> int:
        """Retention of daily backups, days, with the default applied; 0: no backups."""
        if self.backup_retention_days is not None:
            return self.backup_retention_days
        return 0 if self.linked or self.deployment_type == "SCRATCH_2" else DEFAULT_BACKUP_RETENTION_DAYS
