"""Objects under a customer managed KMS key."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client

Call = Callable[[Any, str, str], Any]  # arguments: S3 client, bucket, key


@pytest.fixture
def key(client: Client) -> str:
    return str(client("kms").create_key()["KeyMetadata"]["Arn"])


@pytest.fixture
def bucket(client: Client, name: str, key: str) -> str:
    """A bucket with this key as its default, and the object `x` in it."""
    bucket = f"encrypted-{name}"
    client("s3").create_bucket(Bucket=bucket)
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    client("s3").put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    client("s3").put_object(Bucket=bucket, Key="x", Body=b"x")
    return bucket


def disable(client: Client, key: str) -> tuple[str, str]:
    client("kms").disable_key(KeyId=key)
    return "KMS.DisabledException", f"{key} is disabled."


def delete(client: Client, key: str) -> tuple[str, str]:
    client("kms").schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    return "KMS.KMSInvalidStateException", f"{key} is pending deletion."


def refused(call: Callable[[], Any]) -> tuple[str, str, int]:
    with pytest.raises(ClientError) as caught:
        call()
    response = caught.value.response
    return response["Error"]["Code"], response["Error"]["Message"], response["ResponseMetadata"]["HTTPStatusCode"]


CALLS: dict[str, Call] = {
    "read": lambda s3, bucket, key: s3.get_object(Bucket=bucket, Key="x"),
    "read a part": lambda s3, bucket, key: s3.get_object(Bucket=bucket, Key="x", Range="bytes=0-0"),
    "write by the bucket's default": lambda s3, bucket, key: s3.put_object(Bucket=bucket, Key="y", Body=b"y"),
    "start an upload": lambda s3, bucket, key: s3.create_multipart_upload(Bucket=bucket, Key="y"),
    "copy": lambda s3, bucket, key: s3.copy_object(
        Bucket=bucket, Key="y", CopySource=f"{bucket}/x", ServerSideEncryption="AES256"
    ),
}


@pytest.mark.parametrize("spoil", [disable, delete])
@pytest.mark.parametrize("call", CALLS)
def test_operations_that_need_an_unusable_key_are_refused(
    client: Client, bucket: str, key: str, call: str, spoil: Callable[[Client, str], tuple[str, str]]
) -> None:
    CALLS[call](client("s3"), bucket, key)
    code, message = spoil(client, key)
    assert refused(lambda: CALLS[call](client("s3"), bucket, key)) == (code, message, 400)


@pytest.mark.parametrize("spoil", [disable, delete])
def test_key_of_the_request_is_checked(
    client: Client, name: str, key: str, spoil: Callable[[Client, str], tuple[str, str]]
) -> None:
    client("s3").create_bucket(Bucket=f"plain-{name}")
    item = {"Bucket": f"plain-{name}", "Key": "x"}
    under = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    client("s3").put_object(**item, **under, Body=b"x")
    code, message = spoil(client, key)
    assert refused(lambda: client("s3").get_object(**item)) == (code, message, 400)
    assert refused(lambda: client("s3").put_object(**item, **under, Body=b"x")) == (code, message, 400)
    client("s3").put_object(**item, Body=b"x")
    assert client("s3").get_object(**item)["Body"].read() == b"x"


def test_parts_of_a_started_upload_are_refused(client: Client, bucket: str, key: str) -> None:
    upload = client("s3").create_multipart_upload(Bucket=bucket, Key="y")["UploadId"]
    part = {"Bucket": bucket, "Key": "y", "UploadId": upload, "PartNumber": 1, "Body": b"y"}
    client("s3").upload_part(**part)
    code, message = disable(client, key)
    assert refused(lambda: client("s3").upload_part(**part)) == (code, message, 400)


def test_reenabled_key_works_again(client: Client, bucket: str, key: str) -> None:
    disable(client, key)
    client("kms").enable_key(KeyId=key)
    assert client("s3").get_object(Bucket=bucket, Key="x")["Body"].read() == b"x"


def test_object_can_be_headed_and_deleted_without_the_key(client: Client, bucket: str, key: str) -> None:
    disable(client, key)
    assert client("s3").head_object(Bucket=bucket, Key="x")["SSEKMSKeyId"] == key
    assert client("s3").list_objects_v2(Bucket=bucket)["KeyCount"] == 1
    client("s3").delete_object(Bucket=bucket, Key="x")


def test_key_is_deleted_after_the_waiting_period(client: Client, aws: EmulatedAws, bucket: str, key: str) -> None:
    delete(client, key)
    aws.advance_clock(8 * 86400)
    assert refused(lambda: client("s3").get_object(Bucket=bucket, Key="x"))[0] == "KMS.NotFoundException"


def test_unknown_key_is_refused(client: Client, bucket: str, key: str) -> None:
    missing = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key[:-4] + "0000"}
    code, _, status = refused(lambda: client("s3").put_object(Bucket=bucket, Key="y", Body=b"y", **missing))
    assert (code, status) == ("KMS.NotFoundException", 400)


def test_key_can_be_referenced_by_alias(client: Client, name: str, key: str) -> None:
    client("kms").create_alias(AliasName=f"alias/{name}", TargetKeyId=key)
    client("s3").create_bucket(Bucket=f"aliased-{name}")
    item = {"Bucket": f"aliased-{name}", "Key": "x"}
    client("s3").put_object(**item, Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId=f"alias/{name}")
    code, message = disable(client, key)
    assert refused(lambda: client("s3").get_object(**item)) == (code, message, 400)


def test_objects_under_s3_managed_keys_are_readable(client: Client, name: str) -> None:
    client("s3").create_bucket(Bucket=f"managed-{name}")
    for algorithm in ("AES256", "aws:kms"):
        item = {"Bucket": f"managed-{name}", "Key": algorithm}
        client("s3").put_object(**item, Body=b"x", ServerSideEncryption=algorithm)
        assert client("s3").get_object(**item)["Body"].read() == b"x"
