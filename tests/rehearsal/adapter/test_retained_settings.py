"""A data bucket's encryption by a customer's key and its lifecycle rules, a role's boundary, volumes under a key."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import Adapter, Subject
from rehearsal.adapter.static import StaticAccount
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.made import Made

ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"


@pytest.fixture
def bucket(account: Adapter) -> str:
    return str(Made(account, "aws:s3/bucket:Bucket").id)


@pytest.fixture
def key(account: Adapter) -> str:
    return str(Made(account, "aws:kms/key:Key").outputs["arn"])


def test_a_bucket_is_encrypted_by_a_key_of_the_customer(account: Adapter, bucket: str, key: str) -> None:
    default = {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": key}
    rules = [{"applyServerSideEncryptionByDefault": default, "bucketKeyEnabled": True}]
    Made(account, ENCRYPTION, bucket=bucket, rules=rules)
    s3 = boto3.client("s3")
    (told,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert told == {
        "ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key},
        "BucketKeyEnabled": True,
    }
    assert s3.put_object(Bucket=bucket, Key="x", Body=b"")["SSEKMSKeyId"] == key


TAG = {"Key": "trainyard:keep", "Value": "no"}
FILTERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"prefix": "runs/"}, {"Prefix": "runs/"}),
    ({"tag": {"key": "trainyard:keep", "value": "no"}}, {"Tag": TAG}),
    (
        {"and": {"prefix": "runs/", "tags": {"trainyard:keep": "no"}}},
        {"And": {"Prefix": "runs/", "Tags": [TAG]}},
    ),
]


@pytest.mark.parametrize(("given", "told"), FILTERS)
def test_lifecycle_rules_reach_the_bucket_whole(
    account: Adapter, bucket: str, given: dict[str, Any], told: dict[str, Any]
) -> None:
    rule = {
        "id": "archive",
        "status": "Enabled",
        "filter": given,
        "transitions": [{"days": 30, "storageClass": "DEEP_ARCHIVE"}],
        "noncurrentVersionTransitions": [{"noncurrentDays": 7, "storageClass": "GLACIER"}],
        "noncurrentVersionExpiration": {"noncurrentDays": 30, "newerNoncurrentVersions": 3},
        "expiration": {"days": 365},
        "abortIncompleteMultipartUpload": {"daysAfterInitiation": 7},
    }
    if "tag" in json.dumps(given):  # S3 ends no uploads by tag
        del rule["abortIncompleteMultipartUpload"]
    least = "varies_by_storage_class"
    Made(account, LIFECYCLE, bucket=bucket, rules=[rule], transitionDefaultMinimumObjectSize=least)
    answer = boto3.client("s3").get_bucket_lifecycle_configuration(Bucket=bucket)
    (found,) = answer["Rules"]
    assert found.pop("AbortIncompleteMultipartUpload", {"DaysAfterInitiation": 7}) == {"DaysAfterInitiation": 7}
    assert found == {
        "ID": "archive",
        "Status": "Enabled",
        "Filter": told,
        "Transitions": [{"Days": 30, "StorageClass": "DEEP_ARCHIVE"}],
        "NoncurrentVersionTransitions": [{"NoncurrentDays": 7, "StorageClass": "GLACIER"}],
        "NoncurrentVersionExpiration": {"NoncurrentDays": 30, "NewerNoncurrentVersions": 3},
        "Expiration": {"Days": 365},
    }
    assert answer["TransitionDefaultMinimumObjectSize"] == least


def test_a_role_is_made_with_its_boundary(account: Adapter) -> None:
    iam = boto3.client("iam")
    allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    made = iam.create_policy(PolicyName="boundary", PolicyDocument=json.dumps(allow))["Policy"]["Arn"]
    trusted = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [trusted]})
    role = Made(account, "aws:iam/role:Role", assumeRolePolicy=trust, permissionsBoundary=made)
    bound = iam.get_role(RoleName=role.id)["Role"]["PermissionsBoundary"]
    assert bound["PermissionsBoundaryArn"] == made


def test_a_launch_template_names_the_key_of_its_volumes(account: Adapter, key: str) -> None:
    ebs = {"encrypted": "true", "kmsKeyId": key, "volumeSize": 100}
    made = Made(
        account,
        "aws:ec2/launchTemplate:LaunchTemplate",
        instanceType="t3.medium",
        blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": ebs}],
    )
    versions = boto3.client("ec2").describe_launch_template_versions(LaunchTemplateId=made.id)
    (device,) = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["BlockDeviceMappings"]
    assert (device["Ebs"]["Encrypted"], device["Ebs"]["KmsKeyId"]) == (True, key)


def test_the_static_account_tells_a_keys_id_and_arn(tmp_path: Path) -> None:
    subject = Subject(urn="urn", type="aws:kms/key:Key", name="data", inputs={"description": "x"})
    _, told = StaticAccount().create(subject, tmp_path, lambda line: None)
    assert told["arn"] == f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{told['keyId']}"


def test_a_retained_key_is_found_by_its_tags(account: Adapter) -> None:
    tags = {"trainyard:stack": "kept", "trainyard:role": "data-key"}
    made = Made(account, "aws:kms/key:Key", tags=tags)
    given = {
        "resourceTypeFilters": ["kms:key"],
        "tagFilters": [{"key": key, "values": [value]} for key, value in tags.items()],
    }
    token = "aws:resourcegroupstaggingapi/getResources:getResources"

    def found() -> list[str]:
        return [each["resourceArn"] for each in account.look_up(token, given)["resourceTagMappingLists"]]

    assert found() == [made.outputs["arn"]]
    made.delete()
    # A key that waits for its end keeps its tags, and is found by them: whoever adopts it looks at its state.
    assert found() == [made.outputs["arn"]]
