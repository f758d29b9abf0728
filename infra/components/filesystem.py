"""FSx for Lustre with SSD storage in the nodes' subnet, optionally linked to prefixes of the data bucket."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.scope import Scope
from trainyard.config.settings.storage import FsxSettings
from trainyard.models import layout

# Deletions are not exported: an export would delete objects.
_IMPORTED_EVENTS = ["NEW", "CHANGED", "DELETED"]
_EXPORTED_EVENTS = ["NEW", "CHANGED"]
# The provider waits 30 minutes by default, 10 for an association. A file system of many TiB takes longer.
_TIMEOUTS = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")


@dataclass(frozen=True, kw_only=True)
class FileSystemArgs:
    """Arguments of FileSystem. `key_arn` encrypts PERSISTENT_2 storage; `data_bucket` is the bucket to link."""

    scope: Scope
    settings: FsxSettings
    subnet_id: pulumi.Input[str]
    security_group_ids: Sequence[pulumi.Input[str]]
    key_arn: pulumi.Input[str]
    data_bucket: pulumi.Input[str]


class FileSystem(pulumi.ComponentResource):
    """The shared file system, deleted with the cluster. Permanent data is in the data bucket."""

    dns_name: pulumi.Output[str]
    mount_name: pulumi.Output[str]
    efa: bool

    def __init__(self, name: str, args: FileSystemArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:FileSystem", name, None, opts)
        self._name_prefix = name
        lustre = self._create(args)
        self._associate_prefixes(args, lustre)
        self.efa = args.settings.efa
        self.dns_name = lustre.dns_name
        self.mount_name = lustre.mount_name
        self.register_outputs({"dns_name": self.dns_name, "mount_name": self.mount_name})

    def _create(self, args: FileSystemArgs) -> aws.fsx.LustreFileSystem:
        settings, metadata = args.settings, args.settings.metadata
        persistent = settings.deployment_type == "PERSISTENT_2"
        return aws.fsx.LustreFileSystem(
            f"{self._name_prefix}-lustre",
            deployment_type=settings.deployment_type,
            storage_type="SSD",
            storage_capacity=settings.storage_capacity_gib,
            per_unit_storage_throughput=settings.throughput,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            efa_enabled=True if settings.efa else None,
            metadata_configuration=metadata
            and aws.fsx.LustreFileSystemMetadataConfigurationArgs(mode=metadata.mode, iops=metadata.iops),
            kms_key_id=args.key_arn if persistent else None,
            automatic_backup_retention_days=settings.effective_backup_retention_days if persistent else None,
            copy_tags_to_backups=True if persistent else None,
            subnet_ids=args.subnet_id,
            security_group_ids=args.security_group_ids,
            tags=args.scope.tags("filesystem"),
            opts=child_options(self, "lustre", custom_timeouts=_TIMEOUTS),
        )

    def _associate_prefixes(self, args: FileSystemArgs, lustre: aws.fsx.LustreFileSystem) -> None:
        """Link the datasets and the exports, as the settings require.

        Other prefixes are not linked: each object of a run would become an inode of the metadata server. The policy of
        the data bucket denies FSx all writes except to the exports (bucket_policy.limit_fsx_exports).
        """
        if args.settings.data_repository:
            imported = aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(events=_IMPORTED_EVENTS)
            policies = aws.fsx.DataRepositoryAssociationS3Args(auto_import_policy=imported)
            self._associate(layout.DATASETS, args, lustre, policies)
        if args.settings.export:
            exported = aws.fsx.DataRepositoryAssociationS3AutoExportPolicyArgs(events=_EXPORTED_EVENTS)
            policies = aws.fsx.DataRepositoryAssociationS3Args(auto_export_policy=exported)
            self._associate(layout.EXPORTS, args, lustre, policies)

    def _associate(
        self,
        prefix: str,
        args: FileSystemArgs,
        lustre: aws.fsx.LustreFileSystem,
        policies: aws.fsx.DataRepositoryAssociationS3Args,
    ) -> None:
        """Link a prefix of the data bucket to the path of the same name on the file system."""
        name = prefix.rstrip("/")
        aws.fsx.DataRepositoryAssociation(
            f"{self._name_prefix}-{name}",
            file_system_id=lustre.id,
            file_system_path=f"/{name}",
            data_repository_path=pulumi.Output.concat("s3://", args.data_bucket, "/", prefix),
            batch_import_meta_data_on_create=policies.auto_import_policy is not None,
            s3=policies,
            tags=args.scope.tags(f"{name}-association"),
            opts=child_options(self, name, custom_timeouts=_TIMEOUTS),
        )
