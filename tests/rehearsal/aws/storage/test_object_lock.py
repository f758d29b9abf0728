"""Object Lock by the account's clock. Advancing it affects the whole account: this module starts a separate one."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.config import Config

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.iam.test_authorization import ALLOWED, DENIED, UNKNOWN, allow, outcome, session
from tests.rehearsal.aws.iam.test_identity import TRUST
from tests.rehearsal.aws.storage.test_fsx_associations import document

DAY = 86400
KEY = "runs/r/results/model.safetensors"
DELETED = (None, 204)


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(tmp_path_factory.mktemp("account")) as running:
        yield running


@pytest.fixture(scope="module")
def client(account: EmulatedAws) -> Any:
    keys = account.session()
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    return lambda service: keys.client(service, endpoint_url=account.endpoint, config=config)


@pytest.fixture(scope="module")
def s3(client: Any) -> Any:
    return client("s3")


@pytest.fixture
def bucket(s3: Any, name: str) -> str:
    """A versioned bucket with an object, whose Object Lock was enabled later."""
    bucket = f"locks-{name}"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=bucket, Key="before", Body=b"x")
    s3.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
    return bucket


def retention(account: EmulatedAws, days: float, mode: str = "GOVERNANCE") -> dict[str, Any]:
    return {"Mode": mode, "RetainUntilDate": datetime.fromtimestamp(account.now() + days * DAY, UTC)}


@pytest.fixture
def locked(account: EmulatedAws, s3: Any, bucket: str) -> str:
    """The version of a result that is locked for 10 days."""
    version = str(s3.put_object(Bucket=bucket, Key=KEY, Body=b"model")["VersionId"])
    s3.put_object_retention(Bucket=bucket, Key=KEY, Retention=retention(account, 10))
    return version


def read(s3: Any, bucket: str, version: str) -> bytes:
    return bytes(s3.get_object(Bucket=bucket, Key=KEY, VersionId=version)["Body"].read())


def test_overwritten_and_deleted_result_keeps_its_locked_version(s3: Any, bucket: str, locked: str) -> None:
    s3.put_object(Bucket=bucket, Key=KEY, Body=b"other")
    assert outcome(lambda: s3.delete_object(Bucket=bucket, Key=KEY)) == DELETED  # a delete marker
    assert outcome(lambda: s3.delete_object(Bucket=bucket, Key=KEY, VersionId=locked)) == DENIED
    assert read(s3, bucket, locked) == b"model"


def test_deletion_of_versions_reports_the_locked_one(s3: Any, bucket: str, locked: str) -> None:
    response = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": KEY, "VersionId": locked}]})
    assert [(error["Key"], error["Code"]) for error in response["Errors"]] == [(KEY, "AccessDenied")]
    assert read(s3, bucket, locked) == b"model"


def test_governance_mode_can_be_bypassed(s3: Any, bucket: str, locked: str) -> None:
    entry = {"Objects": [{"Key": KEY, "VersionId": locked}]}
    assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete=entry, BypassGovernanceRetention=True)


def test_documented_deletion_of_the_bucket(account: EmulatedAws, s3: Any, bucket: str, locked: str) -> None:
    """docs/deploy.md, "Delete the retained data"."""
    keys = account.session()
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    resource: Any = keys.resource("s3", endpoint_url=account.endpoint, config=config).Bucket(bucket)
    (response,) = resource.object_versions.delete()
    assert [error["Code"] for error in response["Errors"]] == ["AccessDenied"]
    assert outcome(lambda: s3.delete_bucket(Bucket=bucket)) == ("BucketNotEmpty", 409)
    resource.object_versions.delete(BypassGovernanceRetention=True)
    assert outcome(lambda: s3.delete_bucket(Bucket=bucket)) == DELETED


def test_compliance_mode_cannot_be_bypassed(account: EmulatedAws, s3: Any, bucket: str) -> None:
    version = s3.put_object(Bucket=bucket, Key=KEY, Body=b"model")["VersionId"]
    s3.put_object_retention(Bucket=bucket, Key=KEY, Retention=retention(account, 1, "COMPLIANCE"))
    target = {"Bucket": bucket, "Key": KEY, "VersionId": version, "BypassGovernanceRetention": True}
    assert outcome(lambda: s3.delete_object(**target)) == DENIED


def test_version_can_be_deleted_after_the_retention(account: EmulatedAws, s3: Any, bucket: str, locked: str) -> None:
    account.advance_clock(11 * DAY)
    assert outcome(lambda: s3.delete_object(Bucket=bucket, Key=KEY, VersionId=locked)) == DELETED


def test_lifecycle_rules_delete_a_version_after_its_retention(
    account: EmulatedAws, s3: Any, bucket: str, locked: str
) -> None:
    expiration = {"ID": "rule", "Status": "Enabled", "Filter": {"Prefix": ""}}
    expiration["NoncurrentVersionExpiration"] = {"NoncurrentDays": 1}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [expiration]})
    s3.put_object(Bucket=bucket, Key=KEY, Body=b"other")
    account.advance_clock(5 * DAY)
    assert read(s3, bucket, locked) == b"model"
    account.advance_clock(10 * DAY)
    assert locked not in {each["VersionId"] for each in s3.list_object_versions(Bucket=bucket, Prefix=KEY)["Versions"]}


@pytest.mark.parametrize(("days", "bypass", "expected"), [(20, False, ALLOWED), (5, False, DENIED), (5, True, ALLOWED)])
def test_retention_is_shortened_with_a_bypass_only(
    account: EmulatedAws, s3: Any, bucket: str, locked: str, days: int, bypass: bool, expected: Any
) -> None:
    target = {"Bucket": bucket, "Key": KEY, "BypassGovernanceRetention": bypass}
    assert outcome(lambda: s3.put_object_retention(**target, Retention=retention(account, days))) == expected


def test_retention_requires_object_lock(account: EmulatedAws, s3: Any, name: str) -> None:
    s3.create_bucket(Bucket=f"plain-{name}")
    s3.put_object(Bucket=f"plain-{name}", Key=KEY, Body=b"x")
    target = {"Bucket": f"plain-{name}", "Key": KEY, "Retention": retention(account, 1)}
    assert outcome(lambda: s3.put_object_retention(**target)) == ("InvalidRequest", 400)


def test_versioning_cannot_be_suspended(s3: Any, bucket: str) -> None:
    suspended = {"Status": "Suspended"}
    error, _ = outcome(lambda: s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=suspended))
    assert error == "InvalidBucketState"


def test_default_retention_is_not_emulated(s3: Any, bucket: str) -> None:
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    target = {"Bucket": bucket, "ObjectLockConfiguration": {"ObjectLockEnabled": "Enabled", "Rule": rule}}
    assert outcome(lambda: s3.put_object_lock_configuration(**target)) == UNKNOWN


def test_role_locks_within_the_conditions_of_its_policy(
    account: EmulatedAws, client: Any, bucket: str, locked: str
) -> None:
    """It neither bypasses governance mode, nor uses compliance mode or a longer retention."""
    condition = {
        "StringEquals": {"s3:object-lock-mode": "GOVERNANCE"},
        "NumericLessThanEquals": {"s3:object-lock-remaining-retention-days": "30"},
    }
    results = f"arn:aws:s3:::{bucket}/runs/*/results/*"
    statement = allow(["s3:PutObjectRetention"], results, Condition=condition)
    client("iam").create_role(RoleName=bucket, AssumeRolePolicyDocument=TRUST)
    client("iam").put_role_policy(RoleName=bucket, PolicyName="lock", PolicyDocument=document(statement))
    s3 = session(account, client, bucket)("s3")

    def lock(days: float, mode: str = "GOVERNANCE", **more: Any) -> tuple[str | None, int]:
        target = {"Bucket": bucket, "Key": KEY, "Retention": retention(account, days, mode), **more}
        return outcome(lambda: s3.put_object_retention(**target))

    assert lock(29) == ALLOWED
    assert lock(31) == DENIED
    assert lock(29, "COMPLIANCE") == DENIED
    assert lock(1, BypassGovernanceRetention=True) == DENIED
    assert lock(29, Key="before") == DENIED
