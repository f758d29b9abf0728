"""The two buckets and the key."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.adapter.deployment import Deployment, Resource
from rehearsal.aws.iam.policies import AccessRequest, Principal, evaluate_policies
from tests.infra.conftest import templates_of
from trainyard.models.layout import WHEELS
from trainyard.operations.job_source import MAX_AGE_SECONDS

BUCKET, KEY = "aws:s3/bucket:Bucket", "aws:kms/key:Key"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
LOCK = "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration"
LOGGING = "aws:s3/bucketLogging:BucketLogging"
POLICY = "aws:s3/bucketPolicy:BucketPolicy"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"


def settings_of(run: Deployment, bucket: str) -> list[Resource]:
    name = run.resource(BUCKET, f"trainyard-{bucket}").outputs["bucket"]
    settings = [
        each for each in run.resources.values() if each.inputs.get("bucket") == name and "key" not in each.inputs
    ]
    assert settings
    return settings


def test_data_bucket_and_its_configuration_are_retained(shipped: Deployment) -> None:
    assert shipped.resource(BUCKET, "trainyard-data").retain_on_delete
    assert "forceDestroy" not in shipped.resource(BUCKET, "trainyard-data").inputs
    assert all(setting.retain_on_delete for setting in settings_of(shipped, "data"))


def test_staging_bucket_is_deleted_with_its_objects(shipped: Deployment) -> None:
    bucket = shipped.resource(BUCKET, "trainyard-staging")
    assert bucket.inputs["forceDestroy"] is True
    assert not any(each.retain_on_delete for each in [bucket, *settings_of(shipped, "staging")])


def test_first_up_creates_the_data_bucket(local: Deployment) -> None:
    assert not local.resource(BUCKET, "trainyard-data").imported


def test_later_up_imports_the_retained_data_bucket(changed: Callable[..., Deployment]) -> None:
    run = changed(account={"retained_bucket": "trainyard-data-1234567"})
    assert run.resource(BUCKET, "trainyard-data").import_id == "trainyard-data-1234567"
    assert run.exports["data_bucket"] == "trainyard-data-1234567"


@pytest.mark.parametrize("bucket", ["data", "staging"])
def test_buckets_are_encrypted_private_and_tls_only(shipped: Deployment, bucket: str) -> None:
    kinds = {each.type.rpartition(":")[2]: each.inputs for each in settings_of(shipped, bucket)}
    encryption = kinds["BucketServerSideEncryptionConfiguration"]["rules"][0]
    key = {"kmsMasterKeyId": shipped.resource(KEY, "key-stack-key").outputs["arn"]}
    by = {"sseAlgorithm": "aws:kms", **key} if bucket == "data" else {"sseAlgorithm": "AES256"}
    assert encryption == {"applyServerSideEncryptionByDefault": by, "bucketKeyEnabled": True}
    block = {key: value for key, value in kinds["BucketPublicAccessBlock"].items() if key != "bucket"}
    assert len(block) == 4
    assert all(block.values())
    statement, *_ = json.loads(kinds["BucketPolicy"]["policy"])["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    assert statement["Resource"][1] == statement["Resource"][0] + "/*"


def test_data_is_versioned_and_old_versions_expire(shipped: Deployment) -> None:
    assert shipped.resource(VERSIONING, "data").inputs["versioningConfiguration"] == {"status": "Enabled"}
    rules = {rule["id"]: rule for rule in shipped.resource(LIFECYCLE, "data").inputs["rules"]}
    assert rules["expire-noncurrent"]["noncurrentVersionExpiration"]["noncurrentDays"] > 0
    assert rules["abort-uploads"]["abortIncompleteMultipartUpload"]["daysAfterInitiation"] > 0
    assert not any("expiration" in rule for rule in rules.values())


def test_staging_is_versioned_and_old_versions_expire(shipped: Deployment) -> None:
    assert shipped.resource(VERSIONING, "staging").inputs["versioningConfiguration"] == {"status": "Enabled"}
    rules = {rule["id"]: rule for rule in shipped.resource(LIFECYCLE, "staging").inputs["rules"]}
    assert rules["expire-noncurrent"]["noncurrentVersionExpiration"]["noncurrentDays"] > 0


def test_nodes_may_only_read_the_staging_bucket_except_for_their_events(shipped: Deployment) -> None:
    policy = shipped.resource("aws:s3/bucketPolicy:BucketPolicy", "staging").inputs["policy"]
    _, *denied = json.loads(policy)["Statement"]
    assert {each["Condition"]["ArnEquals"]["aws:PrincipalArn"] for each in denied} == {
        shipped.resource("aws:iam/role:Role", f"identity-{node}").outputs["arn"] for node in ("head", "workers", "job")
    }
    assert all((each["Effect"], each["NotAction"]) == ("Deny", ["s3:GetObject", "s3:ListBucket"]) for each in denied)


def test_manifest_never_expires(shipped: Deployment) -> None:
    rules = [rule for rule in shipped.resource(LIFECYCLE, "staging").inputs["rules"] if "expiration" in rule]
    assert {rule["filter"]["prefix"] for rule in rules} == {"bundle/", "job/", WHEELS}


def test_wheels_outlive_the_check_the_lock_and_a_long_run(shipped: Deployment) -> None:
    rules = {rule["id"]: rule for rule in shipped.resource(LIFECYCLE, "staging").inputs["rules"]}
    days = rules["expire-job-wheels"]["expiration"]["days"]
    assert 3 * MAX_AGE_SECONDS / 86400 + 60 <= days < rules["expire-job"]["expiration"]["days"]


def test_archives_are_retained_while_nodes_boot(shipped: Deployment) -> None:
    assert shipped.resource("aws:s3/bucketObjectv2:BucketObjectv2", "archives-bundle").retain_on_delete


def test_only_tagged_objects_are_archived(shipped: Deployment) -> None:
    rules = {rule["id"]: rule for rule in shipped.resource(LIFECYCLE, "data").inputs["rules"]}
    assert rules["archive-old"]["filter"] == {"tag": {"key": "trainyard:archive", "value": "old"}}
    lifecycle = shipped.resource(LIFECYCLE, "data").inputs
    assert lifecycle["transitionDefaultMinimumObjectSize"] == "varies_by_storage_class"
    assert rules["archive-old"]["transitions"] == [{"days": 90, "storageClass": "DEEP_ARCHIVE"}]
    assert not any("transitions" in rule for name, rule in rules.items() if name != "archive-old")


def test_archiving_can_be_disabled(changed: Callable[..., Deployment]) -> None:
    rules = changed(storage={"archive_after_days": None}).resource(LIFECYCLE, "data").inputs["rules"]
    assert "archive-old" not in {rule["id"] for rule in rules}


def test_key_rotates_and_is_retained(shipped: Deployment) -> None:
    key = shipped.resource(KEY, "key-stack-key")
    assert key.inputs["enableKeyRotation"] is True
    assert key.retain_on_delete


def test_later_up_imports_the_retained_key(changed: Callable[..., Deployment]) -> None:
    run = changed(account={"retained_key_id": "0f1e2d3c-0000-4000-8000-000000000000"})
    assert run.resource(KEY, "key-stack-key").import_id == "0f1e2d3c-0000-4000-8000-000000000000"


def test_auto_scaling_may_use_the_key_and_create_grants_for_aws_resources(shipped: Deployment) -> None:
    """Otherwise instances with encrypted volumes fail with Client.InternalError."""
    statements = {
        each["Sid"]: each for each in json.loads(shipped.resource(KEY, "key-stack-key").inputs["policy"])["Statement"]
    }
    role = "arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    for sid in ("ServiceRoles", "ServiceRolesGrants"):
        assert role in statements[sid]["Condition"]["ArnLike"]["aws:PrincipalArn"]
        assert statements[sid]["Condition"]["StringEquals"] == {"kms:CallerAccount": "123456789012"}
    assert statements["ServiceRolesGrants"]["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"}


def test_existing_bucket_and_key_are_not_changed(changed: Callable[..., Deployment]) -> None:
    arn = "arn:aws:kms:us-east-1:123456789012:key/0f1e2d3c"
    run = changed(storage={"bucket": "our-data", "kms_key": arn})
    assert [each.name for each in run.resources_of_type(KEY)] == ["key-service-key"]
    assert not run.resource(KEY, "key-service-key").retain_on_delete
    assert [each.name for each in run.resources_of_type(BUCKET)] == ["trainyard-staging"]
    assert run.exports["runs_uri"] == "s3://our-data/runs/"
    marker = run.resource("aws:s3/bucketObjectv2:BucketObjectv2", "data-stack").inputs
    assert (marker["bucket"], marker["content"]) == ("our-data", "trainyard/local")
    assert templates_of(run)[0].inputs["blockDeviceMappings"][0]["ebs"]["kmsKeyId"] == arn


FSX, LINK = "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"


def test_file_system_imports_the_datasets_only(gpu: Deployment) -> None:
    """Objects of runs would fill the metadata server."""
    (association,) = gpu.resources_of_type(LINK)
    assert association.inputs["fileSystemPath"] == "/datasets"
    assert association.inputs["dataRepositoryPath"] == f"s3://{gpu.exports['data_bucket']}/datasets/"
    assert association.inputs["batchImportMetaDataOnCreate"] is True
    assert association.inputs["s3"] == {"autoImportPolicy": {"events": ["NEW", "CHANGED", "DELETED"]}}


def test_export_has_its_own_prefix_and_exports_no_deletions(changed: Callable[..., Deployment]) -> None:
    run = changed("h200-cluster", fsx={"export": True})
    (association,) = run.resources_of_type(LINK)
    assert association.inputs["fileSystemPath"] == "/exports"
    assert association.inputs["dataRepositoryPath"] == f"s3://{run.exports['data_bucket']}/exports/"
    assert association.inputs["s3"] == {"autoExportPolicy": {"events": ["NEW", "CHANGED"]}}


def test_object_lock_is_enabled_for_a_versioned_bucket_without_default_retention(
    changed: Callable[..., Deployment], local: Deployment
) -> None:
    """A default retention would also lock checkpoints and records of runs."""
    run = changed(storage={"lock_results_days": 30})
    lock = run.resource(LOCK, "data")
    assert {key for key in lock.inputs if key != "bucket"} == {"objectLockEnabled"}
    assert lock.retain_on_delete
    urns = [each.urn for each in run.resources.values()]
    assert urns.index(run.resource(VERSIONING, "data").urn) < urns.index(lock.urn)
    assert not local.resources_of_type(LOCK)


def test_object_lock_does_not_replace_a_retained_bucket(changed: Callable[..., Deployment]) -> None:
    run = changed(account={"retained_bucket": "trainyard-data-1234567"}, storage={"lock_results_days": 30})
    assert "objectLockEnabled" not in run.resource(BUCKET, "trainyard-data").inputs
    assert run.resource(LOCK, "data").inputs["bucket"] == "trainyard-data-1234567"


def test_manifest_has_the_days_of_the_lock(changed: Callable[..., Deployment]) -> None:
    run = changed(storage={"lock_results_days": 30})
    manifest = json.loads(run.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"])
    assert manifest["limits"]["lock_results_days"] == 30


def test_access_logs_are_written_to_the_bucket_of_the_settings(
    changed: Callable[..., Deployment], local: Deployment
) -> None:
    run = changed(storage={"access_log_bucket": "our-logs", "lock_results_days": 30})
    logging = run.resource(LOGGING, "data")
    target = {key: value for key, value in logging.inputs.items() if key != "bucket"}
    assert target == {"targetBucket": "our-logs", "targetPrefix": "access-logs/trainyard/local/"}
    assert logging.inputs["bucket"] == run.exports["data_bucket"]
    assert logging.retain_on_delete  # as the bucket
    assert not local.resources_of_type(LOGGING)


@pytest.mark.parametrize("action", ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObjectTagging"])
def test_fsx_writes_to_the_exports_only(shipped: Deployment, action: str) -> None:
    """`lfs hsm_archive` on a node exports a file of any linked path, with the role of FSx."""
    document = shipped.resource(POLICY, "data").inputs["policy"]
    bucket = shipped.resource(BUCKET, "trainyard-data").outputs["arn"]

    def decide(role: str, key: str) -> str | None:
        arn = f"arn:aws:iam::123456789012:role/{role}"
        request = AccessRequest(action, f"{bucket}/{key}", {"aws:principalarn": arn})
        return evaluate_policies([document], request, Principal(frozenset([arn])))

    fsx = "aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-01234567890"
    keys = ("datasets/d/index.json", "runs/r/run.json", "archived.json", "exports", "exportsx/a")
    assert {key: decide(fsx, key) for key in keys} == dict.fromkeys(keys, "Deny")
    assert decide(fsx, "exports/a") is None
    assert {decide("workers", key) for key in keys} == {None}


@pytest.mark.parametrize(
    ("bucket", "fsx", "warns"),
    [("our-data", {"export": True}, True), (None, {"export": True}, False), ("our-data", {}, False)],
)
def test_preview_warns_of_a_linked_bucket_without_the_policy(
    changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture, bucket: str | None, fsx: Any, warns: bool
) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/0f1e2d3c"
    changed("h200-cluster", storage={"bucket": bucket, "kms_key": key}, fsx=fsx)
    assert any("lfs hsm_archive" in each.getMessage() for each in caplog.records) == warns


@pytest.mark.parametrize(
    ("fsx", "backups"),
    [
        ({"data_repository": True}, 0),
        ({"export": True}, 0),
        ({}, 7),
        ({"backup_retention_days": 30}, 30),
        ({"backup_retention_days": 0}, 0),
        ({"deployment_type": "SCRATCH_2"}, None),
    ],
)
def test_backups_exist_only_without_associations(
    changed: Callable[..., Deployment], fsx: Any, backups: int | None
) -> None:
    run = changed("h200-cluster", fsx=fsx)
    assert run.resource(FSX, "filesystem-lustre").inputs.get("automaticBackupRetentionDays") == backups
    assert bool(run.resources_of_type(LINK)) == bool({"data_repository", "export"} & fsx.keys())


def test_scratch_has_neither_throughput_nor_key(changed: Callable[..., Deployment]) -> None:
    inputs = changed("h200-cluster", fsx={"deployment_type": "SCRATCH_2"}).resource(FSX, "filesystem-lustre").inputs
    assert not {"perUnitStorageThroughput", "kmsKeyId"} & inputs.keys()


def test_file_system_is_deleted_before_the_linked_bucket(gpu: Deployment) -> None:
    component = gpu.resources[gpu.resource(FSX, "filesystem-lustre").parent]
    assert gpu.resource(BUCKET, "trainyard-data").urn in component.dependencies


def test_efa_enabled_file_system_has_metadata_configuration_and_the_group_of_efa(
    changed: Callable[..., Deployment],
) -> None:
    fsx = {"efa": True, "storage_capacity_gib": 4800, "throughput_mbps_per_tib": 1000}
    run = changed("h200-cluster", fsx=fsx)
    inputs = run.resource(FSX, "filesystem-lustre").inputs
    assert (inputs["efaEnabled"], inputs["metadataConfiguration"]) == (True, {"mode": "AUTOMATIC"})
    interface = templates_of(run)[0].inputs["networkInterfaces"][0]
    assert len(set(inputs["securityGroupIds"]) & set(interface["securityGroups"])) == 1
    manifest = json.loads(run.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"])
    assert manifest["fsx"]["efa"] is True


@pytest.mark.parametrize(
    ("metadata_iops", "expected"),
    [(6000, {"mode": "USER_PROVISIONED", "iops": 6000}), ("automatic", {"mode": "AUTOMATIC"}), (None, None)],
)
def test_metadata_configuration(changed: Callable[..., Deployment], metadata_iops: Any, expected: Any) -> None:
    inputs = changed("h200-cluster", fsx={"metadata_iops": metadata_iops}).resource(FSX, "filesystem-lustre").inputs
    assert inputs.get("metadataConfiguration") == expected
    assert "efaEnabled" not in inputs
