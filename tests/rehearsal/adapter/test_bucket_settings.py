"""Bucket encryption and lifecycle rules, a role's permissions boundary, and encrypted volumes."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.managed_resource import ManagedResource

ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
LOGGING = "aws:s3/bucketLogging:BucketLogging"
LOCK = "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"


@pytest.fixture
def bucket(account: EmulatedAccount) -> str:
    return str(ManagedResource(account, "aws:s3/bucket:Bucket").id)


@pytest.fixture
def key(account: EmulatedAccount) -> str:
    return str(ManagedResource(account, "aws:kms/key:Key").outputs["arn"])


def test_bucket_is_encrypted_with_a_customer_managed_key(account: EmulatedAccount, bucket: str, key: str) -> None:
    default = {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": key}
    rules = [{"applyServerSideEncryptionByDefault": default, "bucketKeyEnabled": True}]
    ManagedResource(account, ENCRYPTION, bucket=bucket, rules=rules)
    s3 = boto3.client("s3")
    (described,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert described == {
        "ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key},
        "BucketKeyEnabled": True,
    }
    assert s3.put_object(Bucket=bucket, Key="x", Body=b"")["SSEKMSKeyId"] == key


def test_bucket_has_object_lock(account: EmulatedAccount, bucket: str) -> None:
    ManagedResource(account, VERSIONING, bucket=bucket, versioningConfiguration={"status": "Enabled"})
    lock = ManagedResource(account, LOCK, bucket=bucket, objectLockEnabled="Enabled")
    configuration = boto3.client("s3").get_object_lock_configuration(Bucket=bucket)["ObjectLockConfiguration"]
    assert configuration["ObjectLockEnabled"] == "Enabled"
    lock.delete()  # S3 cannot disable it
    assert boto3.client("s3").get_object_lock_configuration(Bucket=bucket)["ObjectLockConfiguration"] == configuration


def test_bucket_has_access_logs(account: EmulatedAccount, bucket: str) -> None:
    s3, target = boto3.client("s3"), str(ManagedResource(account, "aws:s3/bucket:Bucket").id)
    allow = {"Effect": "Allow", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{target}/logs/*"}
    service = {"Service": "logging.s3.amazonaws.com"}
    document = {"Version": "2012-10-17", "Statement": [{**allow, "Principal": service}]}
    s3.put_bucket_policy(Bucket=target, Policy=json.dumps(document))
    logging = ManagedResource(account, LOGGING, bucket=bucket, targetBucket=target, targetPrefix="logs/")
    assert s3.get_bucket_logging(Bucket=bucket)["LoggingEnabled"] == {"TargetBucket": target, "TargetPrefix": "logs/"}
    logging.delete()
    assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=bucket)


TAG = {"Key": "trainyard:keep", "Value": "no"}
FILTERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"prefix": "runs/"}, {"Prefix": "runs/"}),
    ({"tag": {"key": "trainyard:keep", "value": "no"}}, {"Tag": TAG}),
]


@pytest.mark.parametrize(("rule_filter", "api_filter"), FILTERS)
def test_bucket_has_all_fields_of_the_lifecycle_rule(
    account: EmulatedAccount, bucket: str, rule_filter: dict[str, Any], api_filter: dict[str, Any]
) -> None:
    rule = {
        "id": "archive",
        "status": "Enabled",
        "filter": rule_filter,
        "transitions": [{"days": 30, "storageClass": "DEEP_ARCHIVE"}],
        "noncurrentVersionExpiration": {"noncurrentDays": 30},
        "expiration": {"days": 365},
        "abortIncompleteMultipartUpload": {"daysAfterInitiation": 7},
    }
    if "tag" in rule_filter:  # S3 does not support this action with a tag filter
        del rule["abortIncompleteMultipartUpload"]
    minimum_size = "varies_by_storage_class"
    ManagedResource(account, LIFECYCLE, bucket=bucket, rules=[rule], transitionDefaultMinimumObjectSize=minimum_size)
    response = boto3.client("s3").get_bucket_lifecycle_configuration(Bucket=bucket)
    (result,) = response["Rules"]
    assert result.pop("AbortIncompleteMultipartUpload", {"DaysAfterInitiation": 7}) == {"DaysAfterInitiation": 7}
    assert result == {
        "ID": "archive",
        "Status": "Enabled",
        "Filter": api_filter,
        "Transitions": [{"Days": 30, "StorageClass": "DEEP_ARCHIVE"}],
        "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
        "Expiration": {"Days": 365},
    }
    assert response["TransitionDefaultMinimumObjectSize"] == minimum_size


def test_role_has_the_permissions_boundary(account: EmulatedAccount) -> None:
    iam = boto3.client("iam")
    allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    created = iam.create_policy(PolicyName="boundary", PolicyDocument=json.dumps(allow))["Policy"]["Arn"]
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    role = ManagedResource(account, "aws:iam/role:Role", assumeRolePolicy=trust, permissionsBoundary=created)
    boundary = iam.get_role(RoleName=role.id)["Role"]["PermissionsBoundary"]
    assert boundary["PermissionsBoundaryArn"] == created


def test_launch_template_has_the_key_of_the_volumes(account: EmulatedAccount, key: str) -> None:
    ebs = {"encrypted": "true", "kmsKeyId": key, "volumeSize": 100}
    created = ManagedResource(
        account,
        "aws:ec2/launchTemplate:LaunchTemplate",
        instanceType="t3.medium",
        blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": ebs}],
    )
    versions = boto3.client("ec2").describe_launch_template_versions(LaunchTemplateId=created.id)
    (device,) = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["BlockDeviceMappings"]
    assert (device["Ebs"]["Encrypted"], device["Ebs"]["KmsKeyId"]) == (True, key)


def test_static_account_returns_id_and_arn_of_a_key(tmp_path: Path) -> None:
    request = ResourceRequest(urn="urn", type="aws:kms/key:Key", name="data", inputs={"description": "x"})
    _, described = StaticAccount().create(request, tmp_path, lambda line: None)
    assert described["arn"] == f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{described['keyId']}"


def test_tag_lookup_returns_a_retained_key(account: EmulatedAccount) -> None:
    tags = {"trainyard:stack": "kept", "trainyard:role": "data-key"}
    created = ManagedResource(account, "aws:kms/key:Key", tags=tags)
    arguments = {
        "resourceTypeFilters": ["kms:key"],
        "tagFilters": [{"key": key, "values": [value]} for key, value in tags.items()],
    }
    token = "aws:resourcegroupstaggingapi/getResources:getResources"

    def find_keys() -> list[str]:
        return [each["resourceArn"] for each in account.invoke(token, arguments)["resourceTagMappingLists"]]

    assert find_keys() == [created.outputs["arn"]]
    created.delete()
    # A key that is pending deletion keeps its tags and is found by them: an import must check its state.
    assert find_keys() == [created.outputs["arn"]]
