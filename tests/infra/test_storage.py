"""The two buckets and the key."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.adapter.graph import Deployment, Resource
from tests.infra.conftest import templates_of

BUCKET, KEY = "aws:s3/bucket:Bucket", "aws:kms/key:Key"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"


def settings_of(run: Deployment, bucket: str) -> list[Resource]:
    name = run.one(BUCKET, f"trainyard-{bucket}").outputs["bucket"]
    found = [each for each in run.resources.values() if each.inputs.get("bucket") == name and "key" not in each.inputs]
    assert found
    return found


def test_data_bucket_and_all_its_settings_outlive_the_stack(shipped: Deployment) -> None:
    assert shipped.one(BUCKET, "trainyard-data").retain_on_delete
    assert "forceDestroy" not in shipped.one(BUCKET, "trainyard-data").inputs
    assert all(setting.retain_on_delete for setting in settings_of(shipped, "data"))


def test_staging_bucket_goes_with_all_that_is_in_it(shipped: Deployment) -> None:
    bucket = shipped.one(BUCKET, "trainyard-staging")
    assert bucket.inputs["forceDestroy"] is True
    assert not any(each.retain_on_delete for each in [bucket, *settings_of(shipped, "staging")])


def test_first_up_makes_the_data_bucket(local: Deployment) -> None:
    assert not local.one(BUCKET, "trainyard-data").adopted


def test_later_up_adopts_the_data_bucket_that_it_finds(changed: Callable[..., Deployment]) -> None:
    run = changed(account={"retained": "trainyard-data-1234567"})
    assert run.one(BUCKET, "trainyard-data").import_id == "trainyard-data-1234567"
    assert run.exports["data_bucket"] == "trainyard-data-1234567"


@pytest.mark.parametrize("bucket", ["data", "staging"])
def test_buckets_are_encrypted_private_and_tls_only(shipped: Deployment, bucket: str) -> None:
    kinds = {each.type.rpartition(":")[2]: each.inputs for each in settings_of(shipped, bucket)}
    encryption = kinds["BucketServerSideEncryptionConfiguration"]["rules"][0]
    key = {"kmsMasterKeyId": shipped.one(KEY, "stack-key").outputs["arn"]}
    by = {"sseAlgorithm": "aws:kms", **key} if bucket == "data" else {"sseAlgorithm": "AES256"}
    assert encryption == {"applyServerSideEncryptionByDefault": by, "bucketKeyEnabled": True}
    block = {key: value for key, value in kinds["BucketPublicAccessBlock"].items() if key != "bucket"}
    assert len(block) == 4
    assert all(block.values())
    (statement,) = json.loads(kinds["BucketPolicy"]["policy"])["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    assert statement["Resource"][1] == statement["Resource"][0] + "/*"


def test_data_is_versioned_and_old_versions_expire(shipped: Deployment) -> None:
    assert shipped.one(VERSIONING, "data").inputs["versioningConfiguration"] == {"status": "Enabled"}
    rules = {rule["id"]: rule for rule in shipped.one(LIFECYCLE, "data").inputs["rules"]}
    assert rules["expire-noncurrent"]["noncurrentVersionExpiration"]["noncurrentDays"] > 0
    assert rules["abort-uploads"]["abortIncompleteMultipartUpload"]["daysAfterInitiation"] > 0
    assert not any("expiration" in rule for rule in rules.values())


def test_manifest_never_expires(shipped: Deployment) -> None:
    rules = [rule for rule in shipped.one(LIFECYCLE, "staging").inputs["rules"] if "expiration" in rule]
    assert {rule["filter"]["prefix"] for rule in rules} == {"bundle/", "job/"}


def test_archive_that_a_node_may_be_booting_from_stays(shipped: Deployment) -> None:
    assert shipped.one("aws:s3/bucketObjectv2:BucketObjectv2", "bundle").retain_on_delete


def test_old_checkpoints_go_to_deep_archive_by_their_tag_alone(shipped: Deployment) -> None:
    rules = {rule["id"]: rule for rule in shipped.one(LIFECYCLE, "data").inputs["rules"]}
    assert rules["archive-old"]["filter"] == {"tag": {"key": "trainyard:archive", "value": "old"}}
    lifecycle = shipped.one(LIFECYCLE, "data").inputs
    assert lifecycle["transitionDefaultMinimumObjectSize"] == "varies_by_storage_class"
    assert rules["archive-old"]["transitions"] == [{"days": 90, "storageClass": "DEEP_ARCHIVE"}]
    assert not any("transitions" in rule for name, rule in rules.items() if name != "archive-old")


def test_archive_can_be_declined(changed: Callable[..., Deployment]) -> None:
    rules = changed(storage={"archive_days": None}).one(LIFECYCLE, "data").inputs["rules"]
    assert "archive-old" not in {rule["id"] for rule in rules}


def test_key_rotates_and_outlives_the_stack_with_what_it_encrypts(shipped: Deployment) -> None:
    key = shipped.one(KEY, "stack-key")
    assert key.inputs["enableKeyRotation"] is True
    assert key.retain_on_delete


def test_later_up_adopts_the_key_that_it_finds(changed: Callable[..., Deployment]) -> None:
    run = changed(account={"retained_key": "0f1e2d3c-0000-4000-8000-000000000000"})
    assert run.one(KEY, "stack-key").import_id == "0f1e2d3c-0000-4000-8000-000000000000"


def test_auto_scaling_may_use_the_key_and_only_for_aws_itself_make_grants(shipped: Deployment) -> None:
    """Without it instances with encrypted volumes end as they begin: Client.InternalError."""
    statements = {one["Sid"]: one for one in json.loads(shipped.one(KEY, "stack-key").inputs["policy"])["Statement"]}
    role = "arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    for sid in ("ServiceRoles", "ServiceRolesGrants"):
        assert role in statements[sid]["Condition"]["ArnLike"]["aws:PrincipalArn"]
        assert statements[sid]["Condition"]["StringEquals"] == {"kms:CallerAccount": "123456789012"}
    assert statements["ServiceRolesGrants"]["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"}


def test_bucket_and_key_that_are_there_are_used_and_not_changed(changed: Callable[..., Deployment]) -> None:
    arn = "arn:aws:kms:us-east-1:123456789012:key/0f1e2d3c"
    run = changed(storage={"bucket": "our-data", "kms_key": arn})
    assert [one.name for one in run.of_type(KEY)] == ["service-key"]  # of logs and notices; it goes with the cluster
    assert not run.one(KEY, "service-key").retain_on_delete
    assert [one.name for one in run.of_type(BUCKET)] == ["trainyard-staging"]
    assert run.exports["runs_uri"] == "s3://our-data/runs/"
    assert templates_of(run)[0].inputs["blockDeviceMappings"][0]["ebs"]["kmsKeyId"] == arn


FSX, LINK = "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"


def test_export_to_s3_never_deletes(gpu: Deployment) -> None:
    link = gpu.one(LINK, "data").inputs["s3"]
    assert link["autoExportPolicy"]["events"] == ["NEW", "CHANGED"]
    assert link["autoImportPolicy"]["events"] == ["NEW", "CHANGED", "DELETED"]


@pytest.mark.parametrize(
    ("fsx", "backups"),
    [
        ({"data_repository": True}, 0),
        ({}, 7),
        ({"backup_days": 30}, 30),
        ({"backup_days": 0}, 0),
        ({"deployment": "SCRATCH_2"}, None),
    ],
)
def test_backups_are_where_no_association_is(changed: Callable[..., Deployment], fsx: Any, backups: int | None) -> None:
    run = changed("a100-cluster", fsx=fsx)
    assert run.one(FSX, "lustre").inputs.get("automaticBackupRetentionDays") == backups
    assert bool(run.of_type(LINK)) == ("data_repository" in fsx)


def test_scratch_takes_neither_throughput_nor_key(changed: Callable[..., Deployment]) -> None:
    inputs = changed("a100-cluster", fsx={"deployment": "SCRATCH_2"}).one(FSX, "lustre").inputs
    assert not {"perUnitStorageThroughput", "kmsKeyId"} & inputs.keys()


def test_file_system_goes_before_the_bucket_that_it_is_linked_to(gpu: Deployment) -> None:
    component = gpu.resources[gpu.one(FSX, "lustre").parent]
    assert gpu.one(BUCKET, "trainyard-data").urn in component.dependencies
