"""The storage of a stack: the KMS key, the data and staging buckets, the archives in them, the file system."""

from dataclasses import dataclass

import pulumi

from infra.components.archives import Archives, ArchivesArgs
from infra.components.filesystem import FileSystem, FileSystemArgs
from infra.components.key import StackKey, StackKeyArgs
from infra.components.network import Network
from infra.components.storage import DataArgs, DataBucket, StagingArgs, StagingBucket
from infra.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Key, buckets and archives."""

    key: StackKey
    data: DataBucket
    staging: StagingBucket
    archives: Archives


def create_storage(inputs: Inputs) -> Storage:
    """Create, import or use the key and the data bucket; create the staging bucket and upload the archives."""
    scope, settings, retained = inputs.scope, inputs.settings.storage, inputs.retained
    key = StackKey("key", StackKeyArgs(scope=scope, existing=settings.kms_key, retained=retained.key))
    data = DataBucket(
        "data",
        DataArgs(
            scope=scope,
            existing=settings.bucket,
            retained=retained.bucket,
            kms_key=settings.kms_key,
            key_arn=key.arn,
            noncurrent_version_days=settings.noncurrent_version_days,
            archive_after_days=settings.archive_after_days,
            lock_results=settings.lock_results_days is not None,
            access_log_bucket=settings.access_log_bucket,
        ),
    )
    staging = StagingBucket("staging", StagingArgs(scope=scope))
    folder = inputs.project.archives
    archives = Archives(
        "archives", ArchivesArgs(scope=scope, bucket=staging.name, archives=inputs.archives, folder=folder)
    )
    return Storage(key=key, data=data, staging=staging, archives=archives)


def create_filesystem(inputs: Inputs, storage: Storage, network: Network) -> FileSystem | None:
    """Create the file system; None where the stack has none."""
    settings, security = inputs.settings.fsx, network.security
    if settings is None:
        return None
    return FileSystem(
        "filesystem",
        FileSystemArgs(
            scope=inputs.scope,
            settings=settings,
            subnet_id=network.subnet_id,
            # An EFA-enabled file system requires a security group that allows all traffic within it.
            security_group_ids=[*security.fsx_groups, *(security.efa_groups if settings.efa else ())],
            key_arn=storage.key.arn,
            data_bucket=storage.data.name,
        ),
        # FSx requires open Lustre ports, and is deleted before the linked bucket.
        pulumi.ResourceOptions(depends_on=[security, storage.data]),
    )
