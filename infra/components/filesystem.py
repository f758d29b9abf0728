"""FSx for Lustre on SSD, in the nodes' subnet, linked to the data bucket where the stack wants it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.scope import Scope
from trainyard.config.settings.storage import FsxSettings

# Imported: what appears, changes and goes in S3. Exported: never a deletion, which would delete objects.
_IMPORTED = ["NEW", "CHANGED", "DELETED"]
_EXPORTED = ["NEW", "CHANGED"]
LINKED_AT = "/data"


@dataclass(frozen=True, kw_only=True)
class FileSystemArgs:
    """`key_arn`: key of what stays on its disks, PERSISTENT_2 only. `data_bucket`: which `settings` may link it to."""

    scope: Scope
    settings: FsxSettings
    subnet_id: pulumi.Input[str]
    security_group_ids: Sequence[pulumi.Input[str]]
    key_arn: pulumi.Input[str]
    data_bucket: pulumi.Input[str]


class FileSystem(pulumi.ComponentResource):
    """A shared scratch space. It goes with the cluster: what shall last is in the data bucket."""

    dns_name: pulumi.Output[str]
    mount_name: pulumi.Output[str]

    def __init__(self, name: str, args: FileSystemArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:FileSystem", name, None, opts)
        own, settings = pulumi.ResourceOptions(parent=self), args.settings
        persistent = settings.deployment == "PERSISTENT_2"
        lustre = aws.fsx.LustreFileSystem(
            "lustre",
            deployment_type=settings.deployment,
            storage_type="SSD",
            storage_capacity=settings.capacity_gib,
            per_unit_storage_throughput=settings.throughput,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            kms_key_id=args.key_arn if persistent else None,
            automatic_backup_retention_days=settings.kept_backup_days if persistent else None,
            copy_tags_to_backups=True if persistent else None,
            subnet_ids=args.subnet_id,
            security_group_ids=args.security_group_ids,
            tags=args.scope.tags("filesystem"),
            opts=own,
        )
        if settings.data_repository:
            aws.fsx.DataRepositoryAssociation(
                "data",
                file_system_id=lustre.id,
                file_system_path=LINKED_AT,
                data_repository_path=pulumi.Output.concat("s3://", args.data_bucket),
                batch_import_meta_data_on_create=True,
                s3=aws.fsx.DataRepositoryAssociationS3Args(
                    auto_import_policy=aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(events=_IMPORTED),
                    auto_export_policy=aws.fsx.DataRepositoryAssociationS3AutoExportPolicyArgs(events=_EXPORTED),
                ),
                tags=args.scope.tags("data-link"),
                opts=own,
            )
        self.dns_name = lustre.dns_name
        self.mount_name = lustre.mount_name
        self.register_outputs({"dns_name": self.dns_name, "mount_name": self.mount_name})
