"""Where data lives: the data bucket and its key, and the shared file system."""

from typing import Literal

from pydantic import Field, field_validator

from trainyard.base import Contract
from trainyard.config.numbers import Whole
from trainyard.config.settings.names import BucketName, KeyArn

Throughput = Literal[125, 250, 500, 1000]
USUAL_THROUGHPUT: Throughput = 250
USUAL_BACKUP_DAYS = 7


class StorageSettings(Contract):
    """The data bucket outlives the cluster, with its settings and its key."""

    bucket: BucketName | None = Field(
        None, description="A bucket that is there, whose settings stay its owner's; none: the stack's own."
    )
    kms_key: KeyArn | None = Field(
        None,
        description="KMS key of the bucket, of root volumes and of the file system; none: the stack's own, with yearly "
        "rotation. A bucket that is there must be under it, or under S3's own key.",
    )
    noncurrent_days: Whole = Field(
        30, ge=1, description="Days for which deleted or overwritten objects can be restored."
    )
    archive_days: Whole | None = Field(
        90,
        ge=1,
        description="Days after which old checkpoints and results, never the newest, go to Deep Archive; none: never.",
    )


class FsxSettings(Contract):
    """FSx for Lustre on SSD."""

    deployment: Literal["PERSISTENT_2", "SCRATCH_2"] = Field(
        "PERSISTENT_2", description="PERSISTENT_2 replaces failed disks; SCRATCH_2 is cheaper and does not."
    )
    capacity_gib: Whole = Field(1200, description="Storage capacity: 1200, or a multiple of 2400 GiB.")
    throughput_mbps_per_tib: Throughput | None = Field(
        None, description="Throughput per TiB of PERSISTENT_2, MB/s; none: 250. SCRATCH_2 has 200, always."
    )
    data_repository: bool = Field(
        False,
        description="Link /data on it to the data bucket: objects appear as files; new and changed files are exported, "
        "deletions never are.",
    )
    backup_days: Whole | None = Field(
        None,
        ge=0,
        le=90,
        description="Days for which daily backups are kept; none: 7 for PERSISTENT_2 without data_repository, else "
        "none, as AWS allows.",
    )

    @field_validator("capacity_gib")
    @classmethod
    def _steps(cls, value: int) -> int:
        if value != 1200 and (value < 2400 or value % 2400):
            raise ValueError("FSx for Lustre SSD storage comes in 1200 GiB or multiples of 2400 GiB")
        return value

    @property
    def throughput(self) -> Throughput | None:
        """MB/s per TiB to ask for; none where AWS takes no such number."""
        if self.deployment == "SCRATCH_2":
            return None
        return self.throughput_mbps_per_tib or USUAL_THROUGHPUT

    @property
    def kept_backup_days(self) -> int:
        if self.backup_days is not None:
            return self.backup_days
        return 0 if self.data_repository or self.deployment == "SCRATCH_2" else USUAL_BACKUP_DAYS
