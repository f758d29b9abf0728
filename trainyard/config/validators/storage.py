"""Validators of storage and tags."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.aws.tags import TRAINYARD_PREFIX
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem

_MAX_TAGS = 50  # of most AWS resources
_OWN_TAGS = 4
# MB/s per TiB -> unit of the storage capacity of a file system with EFA, as public Terraform modules for it state.
_EFA_CAPACITY_GIB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
# Families of the catalog with EFA. EC2 instance types guide, "Instances built on the AWS Nitro System".
_BEFORE_NITRO_V4 = {"g4dn", "g5", "p3dn", "p4d", "p4de"}


def backups_supported(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """FSx for Lustre has backups for unlinked PERSISTENT_2 file systems only (FSx API, CreateBackup)."""
    fsx = settings.fsx
    if fsx is None or not fsx.backup_retention_days:
        return
    reason = None
    if fsx.linked:
        reason = "a file system that is linked to S3 supports no backups: the versioned bucket is the backup"
    elif fsx.deployment_type == "SCRATCH_2":
        reason = "a SCRATCH_2 file system supports no backups"
    if reason:
        yield invalid_setting(
            "fsx.backup_retention_days", fsx.backup_retention_days, reason, "Set it to 0, or remove it"
        )


def throughput_configurable(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Only PERSISTENT_2 has a configurable throughput."""
    fsx = settings.fsx
    if fsx and fsx.deployment_type == "SCRATCH_2" and fsx.throughput_mbps_per_tib is not None:
        reason = "a SCRATCH_2 file system always has 200 MB/s per TiB"
        fix = "Remove it, or set deployment_type: PERSISTENT_2"
        yield invalid_setting("fsx.throughput_mbps_per_tib", fsx.throughput_mbps_per_tib, reason, fix)


def metadata_configurable(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Only PERSISTENT_2 has a metadata configuration (FSx API, CreateFileSystemLustreMetadataConfiguration)."""
    fsx = settings.fsx
    if fsx and fsx.deployment_type != "PERSISTENT_2" and fsx.metadata_iops is not None:
        reason = f"a {fsx.deployment_type} file system has no metadata configuration"
        fix = "Remove it, or set deployment_type: PERSISTENT_2"
        yield invalid_setting("fsx.metadata_iops", fsx.metadata_iops, reason, fix)


def fsx_supports_efa(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The file system can have EFA (FSx for Lustre guide, "Working with EFA-enabled file systems")."""
    fsx = settings.fsx
    if fsx is None or not fsx.efa:
        return
    if fsx.throughput is None:
        reason = f"a {fsx.deployment_type} file system does not support EFA"
        yield invalid_setting("fsx.efa", True, reason, "Set it to false, or deployment_type: PERSISTENT_2")
    elif fsx.storage_capacity_gib % (step := _EFA_CAPACITY_GIB[fsx.throughput]):
        reason = f"with EFA and {fsx.throughput} MB/s per TiB the storage capacity is a multiple of {step} GiB"
        fix = f"Set it to {step}, or fsx.throughput_mbps_per_tib to a higher value, or fsx.efa to false"
        yield invalid_setting("fsx.storage_capacity_gib", fsx.storage_capacity_gib, reason, fix)


def nodes_support_fsx_efa(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The nodes can use EFA for FSx (FSx for Lustre guide, "Configuring EFA clients")."""
    if settings.fsx is None or not settings.fsx.efa:
        return
    family = settings.instance_type.partition(".")[0]
    if not settings.efa:
        reason, fix = "the workers have no EFA interfaces", "Set it to false, or choose an instance type with EFA"
        yield invalid_setting("fsx.efa", True, reason, fix)
    elif family in _BEFORE_NITRO_V4:
        reason = f"{settings.instance_type} is older than Nitro v4, and FSx for Lustre supports EFA from Nitro v4 on"
        yield invalid_setting("fsx.efa", True, reason, "Set it to false, or choose a newer type such as p5.48xlarge")
    elif settings.network.nat_gateway is False and "lustre" not in settings.node.skip_roles:
        reason = "without a NAT gateway nodes cannot download AWS's EFA setup of the Lustre client"
        fix = "Set it to false, or network.nat_gateway to true, or use an image with a configured client"
        yield invalid_setting("fsx.efa", True, reason, fix)


def existing_bucket_not_configured(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The keys of the stack's own bucket are absent where the stack uses an existing one."""
    storage = settings.storage
    for key in ("noncurrent_version_days", "archive_after_days", "lock_results_days", "access_log_bucket"):
        if storage.bucket and key in storage.model_fields_set:
            reason = f"conflicts with storage.bucket: the owner of {storage.bucket} configures it"
            fix = "Remove it, and configure lifecycle rules, locks and access logs of the bucket itself"
            yield invalid_setting(f"storage.{key}", getattr(storage, key), reason, fix)


def tag_count_allowed(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The tags of the user and of Trainyard do not exceed the limit of AWS."""
    limit = _MAX_TAGS - _OWN_TAGS
    if len(settings.tags) > limit:
        reason = f"an AWS resource has at most {_MAX_TAGS} tags, and Trainyard adds {_OWN_TAGS}"
        yield invalid_setting("tags", f"{len(settings.tags)} tags", reason, f"Keep at most {limit}")


def tags_not_reserved(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The user's tags do not replace Trainyard's."""
    for key, value in sorted(settings.tags.items()):
        if key.lower().startswith(TRAINYARD_PREFIX) or key.lower() == "name":
            reason = "Trainyard sets this tag and finds its resources by it"
            yield invalid_setting(f"tags.{key}", value, reason, "Remove it, or choose another key")


def tag_keys_differ_in_case(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """IAM user guide, "Tags for IAM resources": keys of a role that differ only in case are the same key."""
    seen: dict[str, str] = {}
    for key, value in sorted(settings.tags.items()):
        first = seen.setdefault(key.lower(), key)
        if first != key:
            reason = f"differs from {first} only in case, and IAM treats both as one key"
            yield invalid_setting(f"tags.{key}", value, reason, "Keep one of the two")


VALIDATORS = (
    backups_supported,
    throughput_configurable,
    metadata_configurable,
    fsx_supports_efa,
    nodes_support_fsx_efa,
    existing_bucket_not_configured,
    tag_count_allowed,
    tags_not_reserved,
    tag_keys_differ_in_case,
)
