"""Lifecycle rules by the account's clock. Advancing it affects the whole account: this module starts a separate one."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.iam.test_authorization import UNKNOWN, outcome

DAY = 86400
LARGE = b"x" * 128 * 1024


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(tmp_path_factory.mktemp("account")) as running:
        yield running


@pytest.fixture(scope="module")
def s3(account: EmulatedAws) -> Any:
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    return account.session().client("s3", endpoint_url=account.endpoint, config=config)


@pytest.fixture
def bucket(s3: Any, name: str) -> str:
    s3.create_bucket(Bucket=f"lives-{name}")
    return f"lives-{name}"


def rule(
    s3: Any, bucket: str, status: str = "Enabled", minimum_size: dict[str, str] | None = None, **parts: Any
) -> Any:
    complete_rule = {"ID": "rule", "Status": status, "Filter": {"Prefix": ""}, **parts}
    return s3.put_bucket_lifecycle_configuration(
        Bucket=bucket, LifecycleConfiguration={"Rules": [complete_rule]}, **(minimum_size or {})
    )


def deep(days: int) -> dict[str, Any]:
    return {"Transitions": [{"Days": days, "StorageClass": "DEEP_ARCHIVE"}]}


def put(s3: Any, bucket: str, key: str, body: bytes = LARGE, **more: Any) -> str:
    return str(s3.put_object(Bucket=bucket, Key=key, Body=body, **more).get("VersionId"))


def classes(s3: Any, bucket: str) -> dict[str, str]:
    return {entry["Key"]: entry["StorageClass"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", [])}


def test_object_transitions_at_the_midnight_after_the_days(account: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, **deep(30))
    put(s3, bucket, "old")
    due = -(-(account.now() + 30 * DAY) // DAY) * DAY
    account.advance_clock(due - account.now() - 60)
    put(s3, bucket, "new")
    assert classes(s3, bucket) == {"old": "STANDARD", "new": "STANDARD"}
    account.advance_clock(120)
    assert classes(s3, bucket) == {"old": "DEEP_ARCHIVE", "new": "STANDARD"}


def test_archived_object_cannot_be_read(account: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, **deep(1))
    put(s3, bucket, "x")
    account.advance_clock(3 * DAY)
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="x")
    error = caught.value.response["Error"]
    assert (error["Code"], error["StorageClass"]) == ("InvalidObjectState", "DEEP_ARCHIVE")
    assert s3.head_object(Bucket=bucket, Key="x")["StorageClass"] == "DEEP_ARCHIVE"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"Prefix": "runs/"}, {"runs/old", "runs/plain"}),
        ({"Tag": {"Key": "keep", "Value": "no"}}, {"runs/old", "data/old"}),
        ({"And": {"Prefix": "runs/", "Tags": [{"Key": "keep", "Value": "no"}]}}, {"runs/old"}),
        ({"And": {"Prefix": "", "Tags": [{"Key": "keep", "Value": "no"}, {"Key": "b", "Value": "c"}]}}, set()),
    ],
)
def test_rule_applies_to_objects_of_the_filter(
    account: EmulatedAws, s3: Any, bucket: str, filters: dict[str, Any], expected: set[str]
) -> None:
    rule(s3, bucket, Filter=filters, **deep(1))
    for key in ("runs/old", "data/old"):
        put(s3, bucket, key, Tagging="keep=yes")
        tags = {"TagSet": [{"Key": "keep", "Value": "no"}]}
        s3.put_object_tagging(Bucket=bucket, Key=key, Tagging=tags)
    put(s3, bucket, "runs/plain")
    account.advance_clock(3 * DAY)
    assert {key for key, storage_class in classes(s3, bucket).items() if storage_class == "DEEP_ARCHIVE"} == expected


def test_disabled_rule_has_no_effect(account: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, status="Disabled", **deep(1))
    put(s3, bucket, "x")
    account.advance_clock(3 * DAY)
    assert classes(s3, bucket) == {"x": "STANDARD"}


@pytest.mark.parametrize(
    ("minimum_size", "storage_class"),
    [("all_storage_classes_128K", "STANDARD"), ("varies_by_storage_class", "DEEP_ARCHIVE")],
)
def test_small_object_transitions_only_if_configured(
    account: EmulatedAws, s3: Any, bucket: str, minimum_size: str, storage_class: str
) -> None:
    rule(s3, bucket, minimum_size={"TransitionDefaultMinimumObjectSize": minimum_size}, **deep(1))
    response = s3.get_bucket_lifecycle_configuration(Bucket=bucket)
    assert response["TransitionDefaultMinimumObjectSize"] == minimum_size
    put(s3, bucket, "x", LARGE[:-1])
    account.advance_clock(3 * DAY)
    assert classes(s3, bucket) == {"x": storage_class}


def test_expired_object_is_deleted(account: EmulatedAws, s3: Any, bucket: str) -> None:
    rule(s3, bucket, Expiration={"Days": 2})
    put(s3, bucket, "x")
    account.advance_clock(DAY)
    assert classes(s3, bucket) == {"x": "STANDARD"}
    account.advance_clock(2 * DAY)
    assert classes(s3, bucket) == {}


def versions(s3: Any, bucket: str) -> list[str]:
    """Return the ids of the versions of `x`, newest first, without delete markers."""
    return [entry["VersionId"] for entry in s3.list_object_versions(Bucket=bucket).get("Versions", [])]


@pytest.fixture
def versioned(s3: Any, bucket: str) -> str:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


def test_expired_object_with_versions_gets_a_delete_marker(account: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, Expiration={"Days": 1})
    version = put(s3, versioned, "x")
    account.advance_clock(3 * DAY)
    assert (classes(s3, versioned), versions(s3, versioned)) == ({}, [version])


def test_noncurrent_version_expires_after_the_noncurrent_days(account: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, NoncurrentVersionExpiration={"NoncurrentDays": 5})
    first = put(s3, versioned, "x")
    account.advance_clock(30 * DAY)
    second = put(s3, versioned, "x")
    account.advance_clock(4 * DAY)
    assert set(versions(s3, versioned)) == {first, second}
    account.advance_clock(3 * DAY)
    assert versions(s3, versioned) == [second]


def test_version_of_a_deleted_object_expires(account: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, NoncurrentVersionExpiration={"NoncurrentDays": 5})
    put(s3, versioned, "x")
    s3.delete_object(Bucket=versioned, Key="x")
    account.advance_clock(7 * DAY)
    assert versions(s3, versioned) == []


def test_newest_noncurrent_versions_are_retained(account: EmulatedAws, s3: Any, versioned: str) -> None:
    kept = {"NoncurrentDays": 1, "NewerNoncurrentVersions": 2}
    rule(s3, versioned, NoncurrentVersionExpiration=kept)
    (response,) = s3.get_bucket_lifecycle_configuration(Bucket=versioned)["Rules"]
    assert response["NoncurrentVersionExpiration"] == kept
    version_ids = []
    for _ in range(5):
        version_ids.append(put(s3, versioned, "x"))
        account.advance_clock(2)
    account.advance_clock(4 * DAY)
    assert set(versions(s3, versioned)) == set(version_ids[-3:])


def test_noncurrent_version_transitions(account: EmulatedAws, s3: Any, versioned: str) -> None:
    rule(s3, versioned, NoncurrentVersionTransitions=[{"NoncurrentDays": 1, "StorageClass": "DEEP_ARCHIVE"}])
    first, second = put(s3, versioned, "x"), put(s3, versioned, "x")
    account.advance_clock(3 * DAY)
    response = s3.list_object_versions(Bucket=versioned)["Versions"]
    assert {entry["VersionId"]: entry["StorageClass"] for entry in response} == {
        first: "DEEP_ARCHIVE",
        second: "STANDARD",
    }


@pytest.mark.parametrize(
    "part", [{"Filter": {"ObjectSizeGreaterThan": 1}}, {"Expiration": {"Date": "2030-01-01T00:00:00Z"}}]
)
def test_unsupported_rule_is_an_error(s3: Any, bucket: str, part: dict[str, Any]) -> None:
    assert outcome(lambda: rule(s3, bucket, **{**deep(1), **part})) == UNKNOWN


def test_incomplete_uploads_cannot_be_aborted_by_tag(s3: Any, bucket: str) -> None:
    filters = {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}
    with pytest.raises(ClientError, match=r"InvalidRequest.*cannot be specified with Tags"):
        rule(s3, bucket, Filter=filters, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 7})
