"""FSx for Lustre file systems and data repository associations."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.aws_clients import wait_until
from rehearsal.adapter.errors import AdapterError
from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, api_name, input_keys
from rehearsal.adapter.input_diff import PropertyPath
from rehearsal.adapter.refresh import tag_dict, to_input_names
from rehearsal.adapter.tagging import update_tags

# The timeout of terraform-provider-aws. Before its first poll it waits 30 s after the creation and 10 minutes after the
# deletion request (measured with 5.100); the adapter polls from the start.
_FILE_SYSTEM_TIMEOUT_SECONDS = 1800.0
_ASSOCIATION_TIMEOUT_SECONDS = 600.0


def _tags(call: HandlerCall) -> dict[str, Any]:
    """Return the argument for tags, if any: FSx rejects an empty list."""
    return {"Tags": call.tags} if call.tags else {}


class LustreFileSystem(Handler):
    """An FSx for Lustre file system."""

    type = "aws:fsx/lustreFileSystem:LustreFileSystem"
    keys = input_keys(
        "deploymentType",
        "storageType",
        "storageCapacity",
        "perUnitStorageThroughput",
        "fileSystemTypeVersion",
        "dataCompressionType",
        "automaticBackupRetentionDays",
        "copyTagsToBackups",
        "kmsKeyId",
        "subnetIds",
        "securityGroupIds",
        "efaEnabled",
        "tags",
        metadataConfiguration=input_keys("mode", "iops"),
    )
    unreported = frozenset({"securityGroupIds"})
    replace_on_changes = frozenset(
        {
            *("deploymentType", "storageType", "copyTagsToBackups", "kmsKeyId", "subnetIds", "securityGroupIds"),
            "efaEnabled",
        }
    )

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the file system and wait until it is available."""
        lustre = call.api_arguments(
            deploymentType="DeploymentType",
            perUnitStorageThroughput="PerUnitStorageThroughput",
            dataCompressionType="DataCompressionType",
            automaticBackupRetentionDays="AutomaticBackupRetentionDays",
            copyTagsToBackups="CopyTagsToBackups",
            efaEnabled="EfaEnabled",
        )
        if metadata := call.inputs.get("metadataConfiguration"):
            lustre["MetadataConfiguration"] = {api_name(key): value for key, value in metadata.items()}
        file_system_id = call.aws.client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            SubnetIds=[call.inputs["subnetIds"]],  # the provider accepts one subnet, the API a list
            LustreConfiguration=lustre,
            **_tags(call),
            **call.api_arguments(
                storageType="StorageType",
                storageCapacity="StorageCapacity",
                fileSystemTypeVersion="FileSystemTypeVersion",
                securityGroupIds="SecurityGroupIds",
                kmsKeyId="KmsKeyId",
            ),
        )["FileSystem"]["FileSystemId"]

        def available() -> bool:
            state = self._state(call, file_system_id)
            if state in ("FAILED", None):
                raise AdapterError(f"file system {file_system_id} is {state or 'deleted'} during its creation")
            return state == "AVAILABLE"

        wait_until(f"file system {file_system_id} is AVAILABLE", available, _FILE_SYSTEM_TIMEOUT_SECONDS)
        response = call.aws.client("fsx").describe_file_systems(FileSystemIds=[file_system_id])
        file_system = response["FileSystems"][0]
        return file_system_id, {
            "arn": file_system["ResourceARN"],
            "dnsName": file_system["DNSName"],
            "mountName": file_system["LustreConfiguration"]["MountName"],
        }

    def requires_replacement(
        self, path: PropertyPath, old_inputs: Mapping[str, Any], new_inputs: Mapping[str, Any]
    ) -> bool:
        """A decrease of storage capacity, Lustre version or metadata IOPS also replaces the file system."""
        if path == ("metadataConfiguration", "iops"):
            old, new = (inputs.get("metadataConfiguration", {}).get("iops") for inputs in (old_inputs, new_inputs))
            return old is not None and new is not None and new < old
        if path[0] in ("storageCapacity", "fileSystemTypeVersion"):
            return path[0] in old_inputs and float(new_inputs.get(path[0], 0)) < float(old_inputs[path[0]])
        return super().requires_replacement(path, old_inputs, new_inputs)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags. Other updates are not supported."""
        changed = [key for key in self.keys if key != "tags" and call.has_changed(key)]
        if changed:
            raise NotImplementedError(
                f"{call.type} {call.name}: the adapter does not support changes of {', '.join(changed)}"
            )
        fsx = call.aws.client("fsx")
        update_tags(call, fsx.tag_resource, fsx.untag_resource, ResourceARN=call.outputs["arn"])
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        file_system = call.aws.client("fsx").describe_file_systems(FileSystemIds=[call.id])["FileSystems"][0]
        inputs = to_input_names({**file_system, **file_system["LustreConfiguration"]}) | {
            "subnetIds": file_system["SubnetIds"][0],
            "tags": tag_dict(file_system.get("Tags")),
        }
        return ReadResult(inputs=inputs)

    def delete(self, call: HandlerCall) -> None:
        """Delete the file system without a final backup, as the provider does by default.

        AWS does not support backups of SCRATCH file systems.
        """
        without_backup = {"SkipFinalBackup": True}
        scratch = call.inputs.get("deploymentType", "").startswith("SCRATCH")
        call.aws.client("fsx").delete_file_system(
            FileSystemId=call.id, **({} if scratch else {"LustreConfiguration": without_backup})
        )
        wait_until(
            f"file system {call.id} is deleted",
            lambda: self._state(call, call.id) is None,
            _FILE_SYSTEM_TIMEOUT_SECONDS,
        )

    def _state(self, call: HandlerCall, file_system_id: str) -> str | None:
        try:
            file_systems = call.aws.client("fsx").describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "FileSystemNotFound":
                return None
            raise
        return file_systems[0]["Lifecycle"] if file_systems else None


class DataRepositoryAssociation(Handler):
    """The association of a file system's path with an S3 prefix.

    Source of `replace_on_changes` and of the API calls: https://github.com/hashicorp/terraform-provider-aws,
    fsx/data_repository_association.go.
    """

    type = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
    keys = input_keys(
        "fileSystemId",
        "dataRepositoryPath",
        "fileSystemPath",
        "batchImportMetaDataOnCreate",
        "tags",
        s3=input_keys(autoImportPolicy=input_keys("events"), autoExportPolicy=input_keys("events")),
    )
    replace_on_changes = frozenset(["fileSystemId", "dataRepositoryPath", "fileSystemPath"])

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the association and wait until it is available."""
        association = call.aws.client("fsx").create_data_repository_association(
            **call.api_arguments(
                fileSystemId="FileSystemId",
                dataRepositoryPath="DataRepositoryPath",
                fileSystemPath="FileSystemPath",
                batchImportMetaDataOnCreate="BatchImportMetaDataOnCreate",
            ),
            **self._policies(call),
            **_tags(call),
        )["Association"]
        self._wait(call, association["AssociationId"])
        return association["AssociationId"], self._outputs(association)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags and the import and export policies."""
        fsx = call.aws.client("fsx")
        association = self._describe(call, call.id)
        update_tags(call, fsx.tag_resource, fsx.untag_resource, ResourceARN=association["ResourceARN"])
        if call.has_changed("s3"):
            fsx.update_data_repository_association(AssociationId=call.id, **self._policies(call))
            self._wait(call, call.id)
        return self._outputs(association)

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        association = self._describe(call, call.id)
        if association is None:
            return None
        return ReadResult(inputs=to_input_names(association) | {"tags": tag_dict(association.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Delete the association, but not the data in the file system."""
        call.aws.client("fsx").delete_data_repository_association(AssociationId=call.id, DeleteDataInFileSystem=False)
        wait_until(
            f"association {call.id} is deleted",
            lambda: self._describe(call, call.id) is None,
            _ASSOCIATION_TIMEOUT_SECONDS,
        )

    def _policies(self, call: HandlerCall) -> dict[str, Any]:
        s3 = {api_name(key): {"Events": policy["events"]} for key, policy in call.inputs.get("s3", {}).items()}
        return {"S3": s3} if s3 else {}

    def _outputs(self, association: dict[str, Any]) -> dict[str, Any]:
        return {"arn": association["ResourceARN"], "associationId": association["AssociationId"]}

    def _wait(self, call: HandlerCall, association_id: str) -> None:
        def available() -> bool:
            association = self._describe(call, association_id)
            state = association["Lifecycle"] if association else "deleted"
            if state in ("FAILED", "MISCONFIGURED", "deleted"):
                raise AdapterError(f"association {association_id} is {state}")
            return bool(state == "AVAILABLE")

        wait_until(f"association {association_id} is AVAILABLE", available, _ASSOCIATION_TIMEOUT_SECONDS)

    def _describe(self, call: HandlerCall, association_id: str) -> Any:
        fsx = call.aws.client("fsx")
        try:
            return fsx.describe_data_repository_associations(AssociationIds=[association_id])["Associations"][0]
        except ClientError as error:
            if error.response["Error"]["Code"] == "DataRepositoryAssociationNotFound":
                return None
            raise


HANDLERS = (LustreFileSystem(), DataRepositoryAssociation())
