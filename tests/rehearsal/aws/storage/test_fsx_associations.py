"""File systems linked to S3, their backups and their keys."""

import json
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.polling import eventually
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.iam.test_authorization import ALLOWED, DENIED, outcome, session
from tests.rehearsal.aws.iam.test_identity import TRUST
from tests.rehearsal.aws.storage.test_fsx import await_available, make

BACKED_UP = {
    "LustreConfiguration": {
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": 125,
        "AutomaticBackupRetentionDays": 7,
    }
}
SCRATCH = {"LustreConfiguration": {"DeploymentType": "SCRATCH_2"}}


def file_system(client: Client, network: Network, **overrides: Any) -> str:
    return str(await_available(client, make(client, network, **overrides)["FileSystemId"])["FileSystemId"])


@pytest.fixture
def bucket(client: Client, name: str) -> str:
    client("s3").create_bucket(Bucket=f"linked-{name}")
    return f"linked-{name}"


def associate(client: Client, name: str, bucket: str, path: str = "/data", **overrides: Any) -> dict[str, Any]:
    parameters = {
        "FileSystemId": name,
        "FileSystemPath": path,
        "DataRepositoryPath": f"s3://{bucket}{path}/",
        **overrides,
    }
    return dict(client("fsx").create_data_repository_association(**parameters)["Association"])


def describe(client: Client, name: str) -> dict[str, Any]:
    result = client("fsx").describe_data_repository_associations(AssociationIds=[name])
    return dict(result["Associations"][0])


def await_state(client: Client, name: str, state: str) -> None:
    eventually(lambda: describe(client, name)["Lifecycle"] == state, f"{name} {state}")


def refused(call: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


def test_association_requires_an_available_file_system(client: Client, network: Network, bucket: str) -> None:
    name = make(client, network)["FileSystemId"]
    with pytest.raises(ClientError, match=f"{name} is CREATING"):
        associate(client, name, bucket)


def test_association_becomes_available_and_can_be_deleted(
    client: Client, network: Network, aws: EmulatedAws, bucket: str
) -> None:
    fsx, name = client("fsx"), file_system(client, network)
    policies = {"AutoImportPolicy": {"Events": ["NEW", "DELETED"]}, "AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}}
    created = associate(client, name, bucket, S3=policies, Tags=[{"Key": "a", "Value": "b"}])
    assert created["Lifecycle"] == "CREATING"
    association = created["AssociationId"]
    await_state(client, association, "AVAILABLE")
    assert describe(client, association)["S3"] == policies
    assert fsx.list_tags_for_resource(ResourceARN=created["ResourceARN"])["Tags"] == [{"Key": "a", "Value": "b"}]
    kinds = {resource.kind for resource in aws.list_resources() if resource.id.endswith(association)}
    assert kinds == {"data-repository-association"}
    fsx.delete_data_repository_association(AssociationId=association)
    assert describe(client, association)["Lifecycle"] == "DELETING"
    eventually(
        lambda: not [resource for resource in aws.list_resources() if resource.id.endswith(association)],
        "the link's end",
    )
    assert refused(lambda: describe(client, association)) == "DataRepositoryAssociationNotFound"


def test_association_can_be_updated(client: Client, network: Network, bucket: str) -> None:
    association = associate(client, file_system(client, network), bucket)["AssociationId"]
    policies = {"AutoExportPolicy": {"Events": ["NEW"]}}
    client("fsx").update_data_repository_association(AssociationId=association, S3=policies)
    assert describe(client, association)["S3"] == policies


def test_association_of_scratch_file_system_requires_newer_lustre(
    client: Client, network: Network, bucket: str
) -> None:
    old = file_system(client, network, **SCRATCH)
    assert refused(lambda: associate(client, old, bucket)) == "UnsupportedOperation"
    assert associate(client, file_system(client, network, **SCRATCH, FileSystemTypeVersion="2.15"), bucket)


def test_file_system_with_backups_cannot_be_linked(client: Client, network: Network, bucket: str) -> None:
    name = file_system(client, network, **BACKED_UP)
    assert refused(lambda: associate(client, name, bucket)) == "BadRequest"


def test_linked_file_system_cannot_be_backed_up(client: Client, network: Network, bucket: str) -> None:
    fsx, name = client("fsx"), file_system(client, network)
    association = associate(client, name, bucket)["AssociationId"]
    assert refused(lambda: fsx.create_backup(FileSystemId=name)) == "BadRequest"
    final = {"SkipFinalBackup": False}
    assert refused(lambda: fsx.delete_file_system(FileSystemId=name, LustreConfiguration=final)) == "BadRequest"
    fsx.delete_data_repository_association(AssociationId=association)
    of_it = [{"Name": "file-system-id", "Values": [name]}]
    eventually(lambda: not fsx.describe_data_repository_associations(Filters=of_it)["Associations"], "the link's end")
    fsx.create_backup(FileSystemId=name)


def test_overlapping_associations_are_refused(client: Client, network: Network, bucket: str) -> None:
    name = file_system(client, network)
    associate(client, name, bucket, "/data")
    assert refused(lambda: associate(client, name, bucket, "/data/more")) == "BadRequest"
    assert associate(client, name, bucket, "/other")


def test_association_without_the_bucket_is_failed(client: Client, network: Network, bucket: str) -> None:
    association = associate(client, file_system(client, network), bucket)["AssociationId"]
    client("s3").delete_bucket(Bucket=bucket)
    assert describe(client, association)["Lifecycle"] == "FAILED"


def test_associations_are_deleted_with_their_file_system(
    client: Client, network: Network, aws: EmulatedAws, bucket: str
) -> None:
    name = file_system(client, network)
    association = associate(client, name, bucket)["AssociationId"]
    client("fsx").delete_file_system(FileSystemId=name)
    eventually(
        lambda: not [resource for resource in aws.list_resources() if resource.id.endswith(association)],
        "the link's end",
    )


def test_deletion_creates_a_final_backup_only_on_request(client: Client, network: Network, aws: EmulatedAws) -> None:
    fsx = client("fsx")

    def backups() -> int:
        return sum(resource.kind == "backup" for resource in aws.list_resources())

    before = backups()
    fsx.delete_file_system(FileSystemId=file_system(client, network))
    assert backups() == before
    final = {"SkipFinalBackup": False}
    response = fsx.delete_file_system(FileSystemId=file_system(client, network), LustreConfiguration=final)
    assert response["LustreResponse"]["FinalBackupId"].startswith("backup-")
    assert backups() == before + 1


def test_file_system_requires_an_existing_key(client: Client, network: Network) -> None:
    key = client("kms").create_key()["KeyMetadata"]
    created = make(client, network, KmsKeyId=key["KeyId"])
    assert created["KmsKeyId"] == key["Arn"]
    client("kms").schedule_key_deletion(KeyId=key["KeyId"], PendingWindowInDays=7)
    assert refused(lambda: make(client, network, KmsKeyId=key["KeyId"])) == "BadRequest"
    assert refused(lambda: make(client, network, KmsKeyId="11111111-2222-3333-4444-555555555555")) == "BadRequest"


@pytest.mark.parametrize(
    "overrides",
    [
        {"KmsKeyId": "key"},
        {"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "AutomaticBackupRetentionDays": 7}},
        {"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "PerUnitStorageThroughput": 125}},
    ],
    ids=["key", "backups", "throughput"],
)
def test_scratch_file_system_does_not_support(client: Client, network: Network, overrides: dict[str, Any]) -> None:
    if "KmsKeyId" in overrides:
        overrides = {"KmsKeyId": client("kms").create_key()["KeyMetadata"]["KeyId"]}
    assert refused(lambda: make(client, network, **{**SCRATCH, **overrides})) == "BadRequest"


def document(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def test_service_role_of_fsx_is_limited_by_the_bucket_policy(aws: EmulatedAws, client: Client, bucket: str) -> None:
    """The role has permissions for the whole bucket, and a Deny of the bucket policy takes precedence."""
    role = f"AWSServiceRoleForFSxS3Access_fs-{bucket}"
    path = "/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/"
    client("iam").create_role(RoleName=role, Path=path, AssumeRolePolicyDocument=TRUST)
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": f"arn:aws:s3:::{bucket}/*"}
    client("iam").put_role_policy(RoleName=role, PolicyName="s3", PolicyDocument=document(allowed))
    s3 = session(aws, client, f"{path[1:]}{role}")("s3")
    put = partial(s3.put_object, Bucket=bucket, Body=b"")
    assert outcome(lambda: put(Key="datasets/d/index.json")) == ALLOWED
    denied = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:PutObject"],
        "NotResource": [f"arn:aws:s3:::{bucket}/exports/*"],
        "Condition": {"ArnLike": {"aws:PrincipalArn": f"arn:aws:iam::{ACCOUNT}:role{path}AWSServiceRoleForFSx*"}},
    }
    client("s3").put_bucket_policy(Bucket=bucket, Policy=document(denied))
    assert outcome(lambda: put(Key="datasets/d/index.json")) == DENIED
    assert outcome(lambda: put(Key="exports/a")) == ALLOWED
    assert outcome(lambda: client("s3").put_object(Bucket=bucket, Key="datasets/a", Body=b"")) == ALLOWED
