"""The lifecycle rule that moves tagged objects to Deep Archive, and the expected owner of a bucket."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError

from rehearsal.aws.process import ACCOUNT
from tests.conftest import REGION
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket

TAG = {"Key": tags.ARCHIVE, "Value": tags.OLD}
DEEP_ARCHIVE = {"Days": 7, "StorageClass": "DEEP_ARCHIVE"}


@pytest.mark.parametrize(
    ("changes", "days"),
    [
        ({}, 7),
        ({"Filter": {"And": {"Prefix": "runs/", "Tags": [TAG, {"Key": "team", "Value": "line"}]}}}, 7),
        ({"Transitions": [{"Days": 1, "StorageClass": "GLACIER_IR"}, DEEP_ARCHIVE]}, 7),
        ({"Status": "Disabled"}, None),
        ({"Filter": {"Tag": {"Key": "team", "Value": "line"}}}, None),
        ({"Filter": {"Prefix": ""}}, None),
    ],
)
def test_days_until_tagged_objects_are_archived(bucket: Bucket, changes: dict[str, Any], days: int | None) -> None:
    rule = {"ID": "rule", "Status": "Enabled", "Filter": {"Tag": TAG}, "Transitions": [DEEP_ARCHIVE], **changes}
    client("s3", REGION).put_bucket_lifecycle_configuration(
        Bucket=bucket.name, LifecycleConfiguration={"Rules": [rule]}
    )
    assert bucket.days_until_archived(tags.ARCHIVE, tags.OLD) == days


OWNED_CALLS: dict[str, Callable[[Bucket, Path], Any]] = {
    "read": lambda bucket, _: bucket.read("x"),
    "write": lambda bucket, _: bucket.write("x", b"x"),
    "list": lambda bucket, _: list(bucket.keys("")),
    "delete": lambda bucket, _: bucket.delete("x"),
    "upload": lambda bucket, file: bucket.upload("x", file),
    "download": lambda bucket, file: bucket.download("x", file),
}


@pytest.mark.parametrize("name", OWNED_CALLS)
def test_a_bucket_of_another_owner_is_not_used(bucket: Bucket, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    bucket.write("x", b"x")
    call = OWNED_CALLS[name]
    call(Bucket(bucket.name, REGION, ACCOUNT), tmp_path / "file")
    with pytest.raises((ClientError, S3UploadFailedError), match=r"AccessDenied|403"):
        call(Bucket(bucket.name, REGION, "999999999999"), tmp_path / "file")
