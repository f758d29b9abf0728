"""The two buckets."""

import json
from collections.abc import Callable

import pytest

from rehearsal.adapter.graph import Deployment, Resource

BUCKET = "aws:s3/bucket:Bucket"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"


def settings_of(run: Deployment, bucket: str) -> list[Resource]:
    name = run.one(BUCKET, f"trainyard-{bucket}").outputs["bucket"]
    found = [each for each in run.resources.values() if each.inputs.get("bucket") == name and "key" not in each.inputs]
    assert found
    return found


def test_data_bucket_and_all_its_settings_outlive_the_stack(each: Deployment) -> None:
    assert each.one(BUCKET, "trainyard-data").retain_on_delete
    assert "forceDestroy" not in each.one(BUCKET, "trainyard-data").inputs
    assert all(setting.retain_on_delete for setting in settings_of(each, "data"))


def test_staging_bucket_goes_with_all_that_is_in_it(each: Deployment) -> None:
    bucket = each.one(BUCKET, "trainyard-staging")
    assert bucket.inputs["forceDestroy"] is True
    assert not any(each.retain_on_delete for each in [bucket, *settings_of(each, "staging")])


def test_first_up_makes_the_data_bucket(local: Deployment) -> None:
    assert not local.one(BUCKET, "trainyard-data").adopted


def test_later_up_adopts_the_data_bucket_that_it_finds(changed: Callable[..., Deployment]) -> None:
    run = changed(retained="trainyard-data-1234567")
    assert run.one(BUCKET, "trainyard-data").import_id == "trainyard-data-1234567"
    assert run.exports["data_bucket"] == "trainyard-data-1234567"


@pytest.mark.parametrize("bucket", ["data", "staging"])
def test_buckets_are_encrypted_private_and_tls_only(each: Deployment, bucket: str) -> None:
    kinds = {each.type.rpartition(":")[2]: each.inputs for each in settings_of(each, bucket)}
    encryption = kinds["BucketServerSideEncryptionConfiguration"]["rules"][0]
    assert encryption["applyServerSideEncryptionByDefault"]["sseAlgorithm"] == "AES256"
    block = {key: value for key, value in kinds["BucketPublicAccessBlock"].items() if key != "bucket"}
    assert len(block) == 4
    assert all(block.values())
    (statement,) = json.loads(kinds["BucketPolicy"]["policy"])["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    assert statement["Resource"][1] == statement["Resource"][0] + "/*"


def test_data_is_versioned_and_old_versions_expire(each: Deployment) -> None:
    assert each.one(VERSIONING, "data").inputs["versioningConfiguration"] == {"status": "Enabled"}
    rules = {rule["id"]: rule for rule in each.one(LIFECYCLE, "data").inputs["rules"]}
    assert rules["expire-noncurrent"]["noncurrentVersionExpiration"]["noncurrentDays"] > 0
    assert rules["abort-uploads"]["abortIncompleteMultipartUpload"]["daysAfterInitiation"] > 0
    assert not any("expiration" in rule for rule in rules.values())


def test_manifest_never_expires(each: Deployment) -> None:
    rules = [rule for rule in each.one(LIFECYCLE, "staging").inputs["rules"] if "expiration" in rule]
    assert {rule["filter"]["prefix"] for rule in rules} == {"bundle/", "job/"}


def test_archive_that_a_node_may_be_booting_from_stays(each: Deployment) -> None:
    assert each.one("aws:s3/bucketObjectv2:BucketObjectv2", "bundle").retain_on_delete
