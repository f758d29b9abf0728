"""FSx for Lustre, PERSISTENT_2 on SSD, in the nodes' subnet."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class FileSystemArgs:
    """Sizes as contract.settings.FsxSettings checks them."""

    scope: Scope
    subnet_id: pulumi.Input[str]
    security_group_ids: Sequence[pulumi.Input[str]]
    capacity_gib: int
    throughput_mbps_per_tib: int


class FileSystem(pulumi.ComponentResource):
    """A shared scratch space. It goes with the cluster: what shall last is in the data bucket."""

    dns_name: pulumi.Output[str]
    mount_name: pulumi.Output[str]

    def __init__(self, name: str, args: FileSystemArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:FileSystem", name, None, opts)
        lustre = aws.fsx.LustreFileSystem(
            "lustre",
            deployment_type="PERSISTENT_2",
            storage_type="SSD",
            storage_capacity=args.capacity_gib,
            per_unit_storage_throughput=args.throughput_mbps_per_tib,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            automatic_backup_retention_days=0,
            subnet_ids=args.subnet_id,
            security_group_ids=args.security_group_ids,
            tags=args.scope.tags("filesystem"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.dns_name = lustre.dns_name
        self.mount_name = lustre.mount_name
        self.register_outputs({"dns_name": self.dns_name, "mount_name": self.mount_name})
