"""Lifecycle rules by the account's clock. Its jumps move whatever an account holds: this file has one of its own."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.aws.process import OPERATOR_KEY, EmulatedAws
from tests.rehearsal.aws.test_rights import UNKNOWN, answer

DAY = 86400
LARGE = b"x" * 128 * 1024


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture(scope="module")
def s3(own: EmulatedAws) -> Any:
    session = boto3.Session(OPERATOR_KEY, "rehearsal", region_name="us-east-1")
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    return session.client("s3", endpoint_url=own.endpoint, config=config)


@pytest.fixture
def bucket(s3: Any, name: str) -> str:
    s3.create_bucket(Bucket=f"lives-{name}")
    return f"lives-{name}"


def rule(s3: Any, bucket: str, status: str = "Enabled", least: dict[str, str] | None = None, **parts: Any) -> Any:
    given = {"ID": "one", "Status": status, "Filter": {"Prefix": ""}, **parts}
    return s3.put_bucket_lifecycle_configuration(
        Bucket=bucket, LifecycleConfiguration={"Rules": [given]}, **(least or {})
    )


def deep(days: int) -> dict[str, Any]:
    return {"Transitions": [{"Days": days, "StorageClass": "DEEP_ARCHIVE"}]}


def put(s3: Any, bucket: str, key: str, body: bytes = LARGE, **more: Any) -> str:
    return str(s3.put_object(Bucket=bucket, Key=key, Body=body, **more).get("VersionId"))


def classes(s3: Any, bucket: str) -> dict[str, str]:
    return {each["Key"]: each["StorageClass"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", [])}


def test_an_object_goes_to_deep_archive_at_the_midnight_after_its_days(own: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, **deep(30))
    put(s3, bucket, "old")
    due = -(-(own.now() + 30 * DAY) // DAY) * DAY
    own.advance(due - own.now() - 60)
    put(s3, bucket, "new")
    assert classes(s3, bucket) == {"old": "STANDARD", "new": "STANDARD"}
    own.advance(120)
    assert classes(s3, bucket) == {"old": "DEEP_ARCHIVE", "new": "STANDARD"}


def test_an_archived_object_is_not_read(own: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, **deep(1))
    put(s3, bucket, "x")
    own.advance(3 * DAY)
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="x")
    error = caught.value.response["Error"]
    assert (error["Code"], error["StorageClass"]) == ("InvalidObjectState", "DEEP_ARCHIVE")
    assert s3.head_object(Bucket=bucket, Key="x")["StorageClass"] == "DEEP_ARCHIVE"


@pytest.mark.parametrize(
    ("chosen", "moved"),
    [
        ({"Prefix": "runs/"}, {"runs/old", "runs/plain"}),
        ({"Tag": {"Key": "keep", "Value": "no"}}, {"runs/old", "data/old"}),
        ({"And": {"Prefix": "runs/", "Tags": [{"Key": "keep", "Value": "no"}]}}, {"runs/old"}),
        ({"And": {"Prefix": "", "Tags": [{"Key": "keep", "Value": "no"}, {"Key": "b", "Value": "c"}]}}, set()),
    ],
)
def test_a_rule_moves_what_its_filter_names(
    own: EmulatedAws, s3: Any, bucket: str, chosen: dict[str, Any], moved: set[str]
) -> None:
    rule(s3, bucket, Filter=chosen, **deep(1))
    for key in ("runs/old", "data/old"):
        put(s3, bucket, key, Tagging="keep=yes")
        tags = {"TagSet": [{"Key": "keep", "Value": "no"}]}
        s3.put_object_tagging(Bucket=bucket, Key=key, Tagging=tags)
    put(s3, bucket, "runs/plain")
    own.advance(3 * DAY)
    assert {key for key, found in classes(s3, bucket).items() if found == "DEEP_ARCHIVE"} == moved


def test_a_disabled_rule_does_nothing(own: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, status="Disabled", **deep(1))
    put(s3, bucket, "x")
    own.advance(3 * DAY)
    assert classes(s3, bucket) == {"x": "STANDARD"}


@pytest.mark.parametrize(
    ("least", "found"), [("all_storage_classes_128K", "STANDARD"), ("varies_by_storage_class", "DEEP_ARCHIVE")]
)
def test_a_small_object_moves_only_where_that_is_asked(
    own: EmulatedAws, s3: Any, bucket: str, least: str, found: str
) -> None:
    rule(s3, bucket, least={"TransitionDefaultMinimumObjectSize": least}, **deep(1))
    told = s3.get_bucket_lifecycle_configuration(Bucket=bucket)
    assert told["TransitionDefaultMinimumObjectSize"] == least
    put(s3, bucket, "x", LARGE[:-1])
    own.advance(3 * DAY)
    assert classes(s3, bucket) == {"x": found}


def test_an_expired_object_goes(own: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, Expiration={"Days": 2})
    put(s3, bucket, "x")
    own.advance(DAY)
    assert classes(s3, bucket) == {"x": "STANDARD"}
    own.advance(2 * DAY)
    assert classes(s3, bucket) == {}


def versions(s3: Any, bucket: str) -> list[str]:
    """Ids of the versions of `x`, the newest first; delete markers apart."""
    return [each["VersionId"] for each in s3.list_object_versions(Bucket=bucket).get("Versions", [])]


@pytest.fixture
def versioned(s3: Any, bucket: str) -> str:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


def test_an_expired_object_with_versions_is_marked_as_deleted(own: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, Expiration={"Days": 1})
    version = put(s3, versioned, "x")
    own.advance(3 * DAY)
    assert (classes(s3, versioned), versions(s3, versioned)) == ({}, [version])


def test_a_noncurrent_version_goes_after_its_days_as_one(own: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, NoncurrentVersionExpiration={"NoncurrentDays": 5})
    first = put(s3, versioned, "x")
    own.advance(30 * DAY)
    second = put(s3, versioned, "x")
    own.advance(4 * DAY)
    assert set(versions(s3, versioned)) == {first, second}
    own.advance(3 * DAY)
    assert versions(s3, versioned) == [second]


def test_a_deleted_objects_version_goes_too(own: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, NoncurrentVersionExpiration={"NoncurrentDays": 5})
    put(s3, versioned, "x")
    s3.delete_object(Bucket=versioned, Key="x")
    own.advance(7 * DAY)
    assert versions(s3, versioned) == []


def test_the_newest_noncurrent_versions_are_kept(own: EmulatedAws, s3: Any, versioned: str) -> None:
    kept = {"NoncurrentDays": 1, "NewerNoncurrentVersions": 2}
    rule(s3, versioned, NoncurrentVersionExpiration=kept)
    (told,) = s3.get_bucket_lifecycle_configuration(Bucket=versioned)["Rules"]
    assert told["NoncurrentVersionExpiration"] == kept
    made = []
    for _ in range(5):
        made.append(put(s3, versioned, "x"))
        own.advance(2)
    own.advance(4 * DAY)
    assert set(versions(s3, versioned)) == set(made[-3:])


def test_a_noncurrent_version_is_archived(own: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, NoncurrentVersionTransitions=[{"NoncurrentDays": 1, "StorageClass": "DEEP_ARCHIVE"}])
    first, second = put(s3, versioned, "x"), put(s3, versioned, "x")
    own.advance(3 * DAY)
    told = s3.list_object_versions(Bucket=versioned)["Versions"]
    assert {each["VersionId"]: each["StorageClass"] for each in told} == {first: "DEEP_ARCHIVE", second: "STANDARD"}


@pytest.mark.parametrize(
    "part", [{"Filter": {"ObjectSizeGreaterThan": 1}}, {"Expiration": {"Date": "2030-01-01T00:00:00Z"}}]
)
def test_a_rule_that_nobody_here_carries_out_is_an_error(s3: Any, bucket: str, part: dict[str, Any]) -> None:
    assert answer(lambda: rule(s3, bucket, **{**deep(1), **part})) == UNKNOWN


def test_uploads_are_not_ended_by_tag(s3: Any, bucket: str) -> None:
    chosen = {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}
    with pytest.raises(ClientError, match=r"InvalidRequest.*cannot be specified with Tags"):
        rule(s3, bucket, Filter=chosen, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 7})
