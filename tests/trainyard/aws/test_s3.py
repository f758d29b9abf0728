"""The lifecycle rule that moves tagged objects to Deep Archive."""

from typing import Any

import pytest

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
