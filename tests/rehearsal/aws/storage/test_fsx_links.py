"""File systems linked to S3, their backups and their keys."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.polling import eventually
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.test_fsx import await_available, make

BACKED_UP = {
    "LustreConfiguration": {
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": 125,
        "AutomaticBackupRetentionDays": 7,
    }
}
SCRATCH = {"LustreConfiguration": {"DeploymentType": "SCRATCH_2"}}


def file_system(client: Client, network: Network, **given: Any) -> str:
    return str(await_available(client, make(client, network, **given)["FileSystemId"])["FileSystemId"])


@pytest.fixture
def bucket(client: Client, name: str) -> str:
    client("s3").create_bucket(Bucket=f"linked-{name}")
    return f"linked-{name}"


def link(client: Client, name: str, bucket: str, path: str = "/data", **given: Any) -> dict[str, Any]:
    asked = {"FileSystemId": name, "FileSystemPath": path, "DataRepositoryPath": f"s3://{bucket}{path}/", **given}
    return dict(client("fsx").create_data_repository_association(**asked)["Association"])


def told(client: Client, name: str) -> dict[str, Any]:
    found = client("fsx").describe_data_repository_associations(AssociationIds=[name])
    return dict(found["Associations"][0])


def await_state(client: Client, name: str, state: str) -> None:
    eventually(lambda: told(client, name)["Lifecycle"] == state, f"{name} {state}")


def refused(call: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


def test_a_link_becomes_available_as_it_was_asked_and_goes(
    client: Client, network: Network, aws: EmulatedAws, bucket: str
) -> None:
    fsx, name = client("fsx"), file_system(client, network)
    policies = {"AutoImportPolicy": {"Events": ["NEW", "DELETED"]}, "AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}}
    made = link(client, name, bucket, S3=policies, Tags=[{"Key": "a", "Value": "b"}])
    assert made["Lifecycle"] == "CREATING"
    association = made["AssociationId"]
    await_state(client, association, "AVAILABLE")
    assert told(client, association)["S3"] == policies
    assert fsx.list_tags_for_resource(ResourceARN=made["ResourceARN"])["Tags"] == [{"Key": "a", "Value": "b"}]
    kinds = {one.kind for one in aws.dump() if one.id.endswith(association)}
    assert kinds == {"data-repository-association"}
    fsx.delete_data_repository_association(AssociationId=association)
    assert told(client, association)["Lifecycle"] == "DELETING"
    eventually(lambda: not [one for one in aws.dump() if one.id.endswith(association)], "the link's end")
    assert refused(lambda: told(client, association)) == "DataRepositoryAssociationNotFound"


def test_a_link_can_be_changed(client: Client, network: Network, bucket: str) -> None:
    association = link(client, file_system(client, network), bucket)["AssociationId"]
    policies = {"AutoExportPolicy": {"Events": ["NEW"]}}
    client("fsx").update_data_repository_association(AssociationId=association, S3=policies)
    assert told(client, association)["S3"] == policies


def test_a_scratch_file_system_needs_a_newer_lustre_to_be_linked(client: Client, network: Network, bucket: str) -> None:
    old = file_system(client, network, **SCRATCH)
    assert refused(lambda: link(client, old, bucket)) == "UnsupportedOperation"
    assert link(client, file_system(client, network, **SCRATCH, FileSystemTypeVersion="2.15"), bucket)


def test_a_file_system_with_backups_can_not_be_linked(client: Client, network: Network, bucket: str) -> None:
    name = file_system(client, network, **BACKED_UP)
    assert refused(lambda: link(client, name, bucket)) == "BadRequest"


def test_a_linked_file_system_can_have_no_backup(client: Client, network: Network, bucket: str) -> None:
    fsx, name = client("fsx"), file_system(client, network)
    association = link(client, name, bucket)["AssociationId"]
    assert refused(lambda: fsx.create_backup(FileSystemId=name)) == "BadRequest"
    final = {"SkipFinalBackup": False}
    assert refused(lambda: fsx.delete_file_system(FileSystemId=name, LustreConfiguration=final)) == "BadRequest"
    fsx.delete_data_repository_association(AssociationId=association)
    of_it = [{"Name": "file-system-id", "Values": [name]}]
    eventually(lambda: not fsx.describe_data_repository_associations(Filters=of_it)["Associations"], "the link's end")
    fsx.create_backup(FileSystemId=name)


def test_links_of_a_file_system_do_not_overlap(client: Client, network: Network, bucket: str) -> None:
    name = file_system(client, network)
    link(client, name, bucket, "/data")
    assert refused(lambda: link(client, name, bucket, "/data/more")) == "BadRequest"
    assert link(client, name, bucket, "/other")


def test_a_link_without_its_bucket_has_failed(client: Client, network: Network, bucket: str) -> None:
    association = link(client, file_system(client, network), bucket)["AssociationId"]
    client("s3").delete_bucket(Bucket=bucket)
    assert told(client, association)["Lifecycle"] == "FAILED"


def test_links_go_with_their_file_system(client: Client, network: Network, aws: EmulatedAws, bucket: str) -> None:
    name = file_system(client, network)
    association = link(client, name, bucket)["AssociationId"]
    client("fsx").delete_file_system(FileSystemId=name)
    eventually(lambda: not [one for one in aws.dump() if one.id.endswith(association)], "the link's end")


def test_a_deletion_leaves_a_final_backup_only_where_one_is_asked_for(
    client: Client, network: Network, aws: EmulatedAws
) -> None:
    fsx = client("fsx")

    def backups() -> int:
        return sum(one.kind == "backup" for one in aws.dump())

    before = backups()
    fsx.delete_file_system(FileSystemId=file_system(client, network))
    assert backups() == before
    final = {"SkipFinalBackup": False}
    answer = fsx.delete_file_system(FileSystemId=file_system(client, network), LustreConfiguration=final)
    assert answer["LustreResponse"]["FinalBackupId"].startswith("backup-")
    assert backups() == before + 1


def test_a_file_system_is_encrypted_under_a_key_that_is_there(client: Client, network: Network) -> None:
    key = client("kms").create_key()["KeyMetadata"]
    made = make(client, network, KmsKeyId=key["KeyId"])
    assert made["KmsKeyId"] == key["Arn"]
    client("kms").schedule_key_deletion(KeyId=key["KeyId"], PendingWindowInDays=7)
    assert refused(lambda: make(client, network, KmsKeyId=key["KeyId"])) == "BadRequest"
    assert refused(lambda: make(client, network, KmsKeyId="11111111-2222-3333-4444-555555555555")) == "BadRequest"


@pytest.mark.parametrize(
    "given",
    [
        {"KmsKeyId": "key"},
        {"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "AutomaticBackupRetentionDays": 7}},
        {"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "PerUnitStorageThroughput": 125}},
    ],
    ids=["key", "backups", "throughput"],
)
def test_a_scratch_file_system_has_no(client: Client, network: Network, given: dict[str, Any]) -> None:
    if "KmsKeyId" in given:
        given = {"KmsKeyId": client("kms").create_key()["KeyMetadata"]["KeyId"]}
    assert refused(lambda: make(client, network, **{**SCRATCH, **given})) == "BadRequest"
