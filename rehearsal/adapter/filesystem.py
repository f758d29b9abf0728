"""FSx for Lustre."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.changes import Changed
from rehearsal.adapter.errors import AdapterError
from rehearsal.adapter.handler import Call, Handler, Made, api_case, known
from rehearsal.adapter.session import wait_until
from rehearsal.adapter.tagging import retag_by

_SECONDS = 1800.0
_LINK_SECONDS = 600.0


def _tags(call: Call) -> dict[str, Any]:
    """FSx takes no empty list."""
    return {"Tags": call.tags} if call.tags else {}


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
        "copyTagsToBackups",
        "kmsKeyId",
        "skipFinalBackup",
        "subnetIds",
        "securityGroupIds",
        "tags",
    )
    replaces = frozenset(
        {"deploymentType", "storageType", "copyTagsToBackups", "kmsKeyId", "subnetIds", "securityGroupIds"}
    )

    def create(self, call: Call) -> Made:
        lustre = call.only(
            deploymentType="DeploymentType",
            perUnitStorageThroughput="PerUnitStorageThroughput",
            dataCompressionType="DataCompressionType",
            automaticBackupRetentionDays="AutomaticBackupRetentionDays",
            copyTagsToBackups="CopyTagsToBackups",
        )
        made = call.aws.client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            SubnetIds=[call.inputs["subnetIds"]],  # the provider's one subnet, under the API's plural
            LustreConfiguration=lustre,
            **_tags(call),
            **call.only(
                storageType="StorageType",
                storageCapacity="StorageCapacity",
                fileSystemTypeVersion="FileSystemTypeVersion",
                securityGroupIds="SecurityGroupIds",
                kmsKeyId="KmsKeyId",
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

    def forces(self, path: Changed, olds: Mapping[str, Any], news: Mapping[str, Any]) -> bool:
        """Neither storage nor the version of Lustre goes down in place."""
        if path[0] in ("storageCapacity", "fileSystemTypeVersion"):
            return path[0] in olds and float(news.get(path[0], 0)) < float(olds[path[0]])
        return super().forces(path, olds, news)

    def update(self, call: Call) -> dict[str, Any]:
        changed = [key for key in self.keys if key != "tags" and call.changed(key)]
        if changed:
            raise NotImplementedError(f"{call.type} {call.name}: UpdateFileSystem ({', '.join(changed)})")
        fsx = call.aws.client("fsx")
        retag_by(call, fsx.tag_resource, fsx.untag_resource, ResourceARN=call.outputs["arn"])
        return {}

    def delete(self, call: Call) -> None:
        """The provider asks for no final backup unless told to; one of a SCRATCH file system AWS can't take."""
        final = {"SkipFinalBackup": call.inputs.get("skipFinalBackup", True)}
        scratch = call.inputs.get("deploymentType", "").startswith("SCRATCH")
        call.aws.client("fsx").delete_file_system(
            FileSystemId=call.id, **({} if scratch else {"LustreConfiguration": final})
        )
        wait_until(f"file system {call.id} is gone", lambda: self._state(call, call.id) is None, _SECONDS)

    def _state(self, call: Call, file_system: str) -> str | None:
        try:
            found = call.aws.client("fsx").describe_file_systems(FileSystemIds=[file_system])["FileSystems"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "FileSystemNotFound":
                return None
            raise
        return found[0]["Lifecycle"] if found else None


class DataRepositoryAssociation(Handler):
    """`replaces` and calls: https://github.com/hashicorp/terraform-provider-aws, fsx/data_repository_association.go."""

    type = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
    keys = known(
        "fileSystemId",
        "dataRepositoryPath",
        "fileSystemPath",
        "batchImportMetaDataOnCreate",
        "deleteDataInFilesystem",  # of its deletion
        "tags",
        s3=known(autoImportPolicy=known("events"), autoExportPolicy=known("events")),
    )
    replaces = frozenset(["fileSystemId", "dataRepositoryPath", "fileSystemPath"])

    def create(self, call: Call) -> Made:
        made = call.aws.client("fsx").create_data_repository_association(
            **call.only(
                fileSystemId="FileSystemId",
                dataRepositoryPath="DataRepositoryPath",
                fileSystemPath="FileSystemPath",
                batchImportMetaDataOnCreate="BatchImportMetaDataOnCreate",
            ),
            **self._policies(call),
            **_tags(call),
        )["Association"]
        self._wait(call, made["AssociationId"])
        return made["AssociationId"], self._outputs(made)

    def update(self, call: Call) -> dict[str, Any]:
        fsx = call.aws.client("fsx")
        found = self._described(call, call.id)
        retag_by(call, fsx.tag_resource, fsx.untag_resource, ResourceARN=found["ResourceARN"])
        if call.changed("s3"):
            fsx.update_data_repository_association(AssociationId=call.id, **self._policies(call))
            self._wait(call, call.id)
        return self._outputs(found)

    def delete(self, call: Call) -> None:
        call.aws.client("fsx").delete_data_repository_association(
            AssociationId=call.id, DeleteDataInFileSystem=call.inputs.get("deleteDataInFilesystem", False)
        )
        wait_until(f"association {call.id} is gone", lambda: self._described(call, call.id) is None, _LINK_SECONDS)

    def _policies(self, call: Call) -> dict[str, Any]:
        s3 = {api_case(key): {"Events": policy["events"]} for key, policy in call.inputs.get("s3", {}).items()}
        return {"S3": s3} if s3 else {}

    def _outputs(self, found: dict[str, Any]) -> dict[str, Any]:
        return {"arn": found["ResourceARN"], "associationId": found["AssociationId"]}

    def _wait(self, call: Call, association: str) -> None:
        def available() -> bool:
            found = self._described(call, association)
            state = found["Lifecycle"] if found else "gone"
            if state in ("FAILED", "MISCONFIGURED", "gone"):
                raise AdapterError(f"association {association} is {state}")
            return bool(state == "AVAILABLE")

        wait_until(f"association {association} is AVAILABLE", available, _LINK_SECONDS)

    def _described(self, call: Call, association: str) -> Any:
        fsx = call.aws.client("fsx")
        try:
            return fsx.describe_data_repository_associations(AssociationIds=[association])["Associations"][0]
        except ClientError as error:
            if error.response["Error"]["Code"] == "DataRepositoryAssociationNotFound":
                return None
            raise


HANDLERS = (LustreFileSystem(), DataRepositoryAssociation())
