"""FSx for Lustre."""

from botocore.exceptions import ClientError

from rehearsal.adapter.errors import AdapterError
from rehearsal.adapter.handler import Call, Handler, Made, known
from rehearsal.adapter.session import wait_until

_SECONDS = 1800.0


class LustreFileSystem(Handler):
    type = "aws:fsx/lustreFileSystem:LustreFileSystem"
    keys = known(
        "deploymentType",
        "storageType",
        "storageCapacity",
        "perUnitStorageThroughput",
        "fileSystemTypeVersion",
        "dataCompressionType",
        "automaticBackupRetentionDays",
        "subnetIds",
        "securityGroupIds",
        "tags",
    )

    def create(self, call: Call) -> Made:
        lustre = call.only(
            deploymentType="DeploymentType",
            perUnitStorageThroughput="PerUnitStorageThroughput",
            dataCompressionType="DataCompressionType",
            automaticBackupRetentionDays="AutomaticBackupRetentionDays",
        )
        made = call.aws.client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            SubnetIds=[call.inputs["subnetIds"]],  # the provider's one subnet, under the API's plural
            Tags=call.tags,
            LustreConfiguration=lustre,
            **call.only(
                storageType="StorageType",
                storageCapacity="StorageCapacity",
                fileSystemTypeVersion="FileSystemTypeVersion",
                securityGroupIds="SecurityGroupIds",
            ),
        )["FileSystem"]["FileSystemId"]

        def available() -> bool:
            state = self._state(call, made)
            if state in ("FAILED", None):
                raise AdapterError(f"file system {made} is {state or 'gone'} while it is being created")
            return state == "AVAILABLE"

        wait_until(f"file system {made} is AVAILABLE", available, _SECONDS)
        found = call.aws.client("fsx").describe_file_systems(FileSystemIds=[made])["FileSystems"][0]
        return made, {
            "arn": found["ResourceARN"],
            "dnsName": found["DNSName"],
            "mountName": found["LustreConfiguration"]["MountName"],
        }

    def delete(self, call: Call) -> None:
        call.aws.client("fsx").delete_file_system(FileSystemId=call.id)
        wait_until(f"file system {call.id} is gone", lambda: self._state(call, call.id) is None, _SECONDS)

    def _state(self, call: Call, file_system: str) -> str | None:
        try:
            found = call.aws.client("fsx").describe_file_systems(FileSystemIds=[file_system])["FileSystems"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "FileSystemNotFound":
                return None
            raise
        return found[0]["Lifecycle"] if found else None


HANDLERS = (LustreFileSystem(),)
