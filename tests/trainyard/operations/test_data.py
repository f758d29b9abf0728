"""`trainyard data`: uploads continue, and the bucket is created as `pulumi up` expects it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.config.stacks import changed
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import tags
from trainyard.aws.s3 import Bucket
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError
from trainyard.models.dataset import INDEX
from trainyard.models.layout import upload_key
from trainyard.operations import data, data_bucket
from trainyard.operations.cluster import Cluster
from trainyard.operations.data_bucket import find_data_bucket

SETTINGS = StackSettings.model_validate(changed({"tags": {"team": "a"}}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "books/a").mkdir(parents=True)
    for name, text in {INDEX: "{}", "a/1.bin": "one", "z.bin": "last"}.items():
        (tmp_path / "books" / name).write_text(text)
    return tmp_path / "books"


def put(cluster: clusters.Cluster, folder: Path) -> data.UploadResult:
    return data.put_dataset(Cluster(cluster.stack, REGION), SETTINGS, folder, "books", RecordingDisplay())


def test_upload_has_all_files_and_is_complete(account: EmulatedAws, folder: Path) -> None:
    cluster = clusters.create_cluster(REGION)
    result = put(cluster, folder)
    assert (result.files, result.bytes, result.uploaded_files, result.created_bucket) == (3, 9, 3, False)
    assert cluster.data.read("datasets/books/a/1.bin") == b"one"
    (listed,) = data.list_datasets(Cluster(cluster.stack, REGION), SETTINGS)
    assert (listed.name, listed.files, listed.bytes, listed.complete) == ("books", 3, 9, True)


def test_repeated_upload_skips_equal_files(account: EmulatedAws, folder: Path) -> None:
    cluster = clusters.create_cluster(REGION)
    put(cluster, folder)
    (folder / "a/1.bin").write_text("two")  # the same size
    assert put(cluster, folder).uploaded_files == 1
    assert cluster.data.read("datasets/books/a/1.bin") == b"two"


def test_objects_that_the_folder_does_not_have_are_kept_and_listed(account: EmulatedAws, folder: Path) -> None:
    cluster = clusters.create_cluster(REGION)
    cluster.data.write("datasets/books/old.bin", b"old")
    assert put(cluster, folder).other_objects == ("old.bin",)
    assert cluster.data.read("datasets/books/old.bin") == b"old"


def test_interrupted_upload_is_incomplete_and_continues(
    account: EmulatedAws, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, original = clusters.create_cluster(REGION), data._put

    def interrupted(s3: Any, bucket: str, key: str, *arguments: Any) -> None:
        if key.endswith("z.bin"):
            raise KeyboardInterrupt
        original(s3, bucket, key, *arguments)

    monkeypatch.setattr(data, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(cluster, folder)
    assert cluster.data.find(upload_key("books")) is not None
    assert cluster.data.find(f"datasets/books/{INDEX}") is None
    monkeypatch.undo()
    result = put(cluster, folder)
    assert (result.files, result.uploaded_files) == (3, 2)
    assert cluster.data.find(upload_key("books")) is None


def test_first_upload_creates_the_bucket_with_its_key(account: EmulatedAws, folder: Path) -> None:
    cluster, display = Cluster("new-stack", REGION), RecordingDisplay()
    result = data.put_dataset(cluster, SETTINGS, folder, "books", display)
    assert result.created_bucket
    name, s3 = result.uri.split("/")[2], boto3.client("s3", region_name=REGION)
    bucket_tags = {tag["Key"]: tag["Value"] for tag in s3.get_bucket_tagging(Bucket=name)["TagSet"]}
    assert bucket_tags == {
        "team": "a",
        "Name": "trainyard-new-stack-data-bucket",
        tags.STACK: "trainyard/new-stack",
        tags.ROLE: tags.DATA_BUCKET,
        tags.KMS_KEY: tags.STACK_KEY,
    }
    (rule,) = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    key = rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"]
    assert s3.head_object(Bucket=name, Key=f"datasets/books/{INDEX}")["SSEKMSKeyId"] == key
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    (lifecycle,) = s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert lifecycle["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert all(s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"].values())
    assert not data.put_dataset(cluster, SETTINGS, folder, "books", display).created_bucket


@contextmanager
def denied(account: EmulatedAws, operation: str) -> Iterator[None]:
    account.inject(Deny(operation=operation))
    try:
        yield
    finally:
        account.clear_faults()


def data_buckets() -> list[str]:
    buckets = boto3.client("s3", region_name=REGION).list_buckets()["Buckets"]
    return [bucket["Name"] for bucket in buckets if bucket["Name"].startswith("trainyard-data-")]


def stack_keys(stack: str) -> list[str]:
    response = boto3.client("resourcegroupstaggingapi", region_name=REGION).get_resources(
        TagFilters=[{"Key": tags.STACK, "Values": [f"trainyard/{stack}"]}], ResourceTypeFilters=["kms:key"]
    )
    return [entry["ResourceARN"] for entry in response["ResourceTagMappingList"]]


@pytest.mark.parametrize("operation", ["PutBucketEncryption", "PutBucketTagging"])
def test_bucket_that_cannot_be_configured_is_deleted(account: EmulatedAws, folder: Path, operation: str) -> None:
    before = data_buckets()
    with denied(account, f"s3:{operation}"), pytest.raises(ClientError, match=operation):
        data.put_dataset(Cluster(f"no-{operation}", REGION), SETTINGS, folder, "books", RecordingDisplay())
    assert data_buckets() == before


def test_repeated_upload_uses_the_key_of_a_failed_one(
    account: EmulatedAws, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, listed, calls = Cluster("late-index", REGION), data_bucket._find_key, iter(range(3))
    # The tag index lists the key after three further look-ups.
    monkeypatch.setattr(data_bucket, "_find_key", lambda of: None if next(calls, None) is not None else listed(of))
    monkeypatch.setattr(data_bucket, "POLL_SECONDS", 0.0)
    with denied(account, "s3:CreateBucket"), pytest.raises(ClientError, match="CreateBucket"):
        data.put_dataset(cluster, SETTINGS, folder, "books", RecordingDisplay())
    assert data.put_dataset(cluster, SETTINGS, folder, "books", RecordingDisplay()).created_bucket
    assert len(stack_keys("late-index")) == 1


def test_bucket_without_its_configuration_is_configured(account: EmulatedAws, folder: Path) -> None:
    cluster = clusters.create_cluster(REGION)
    put(cluster, folder)
    stored = boto3.client("s3", region_name=REGION).head_object(Bucket=cluster.data.name, Key=f"datasets/books/{INDEX}")
    assert [stored["SSEKMSKeyId"]] == stack_keys(cluster.stack)


def test_bucket_of_the_settings_is_used_and_must_exist(account: EmulatedAws) -> None:
    settings = StackSettings.model_validate(changed({"storage.bucket": "data-of-the-user"}))
    with pytest.raises(InputError, match=r"storage.bucket = 'data-of-the-user': does not exist"):
        find_data_bucket(Cluster("any", REGION), settings)
    boto3.client("s3", region_name=REGION).create_bucket(Bucket="data-of-the-user")
    bucket = find_data_bucket(Cluster("any", REGION), settings)
    assert isinstance(bucket, Bucket)
    assert bucket.name == "data-of-the-user"


def test_linked_folders_belong_to_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/1.bin").write_text("one")
    (tmp_path / "data").mkdir()
    for name in ("train", "validation"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "disk")
    names = [path.relative_to(tmp_path).as_posix() for path in data.files_of(tmp_path / "data")]
    assert names == ["data/train/1.bin", "data/validation/1.bin"]


def test_link_to_a_folder_above_is_not_followed(folder: Path) -> None:
    (folder / "a/all").symlink_to(folder)
    assert len(data.files_of(folder)) == 3


def test_link_to_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "a/gone.bin").symlink_to(folder / "missing")
    with pytest.raises(InputError, match=r"a/gone.bin': is a link to .*/missing, which does not exist"):
        data.files_of(folder)


@pytest.mark.parametrize(("name", "code"), [("empty", "folder_empty"), ("missing", "folder_missing")])
def test_folder_without_files_is_refused(account: EmulatedAws, tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError) as error:
        put(clusters.create_cluster(REGION), tmp_path / name)
    assert [problem.code for problem in error.value.problems] == [code]
