"""The data bucket of a stack: find it, or create it with its KMS key before the first `pulumi up`, which imports both.

The Pulumi program finds bucket and key by their tags (infra/lookups/retained.py), and writes the configuration of the
bucket again.
"""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.exceptions import ClientError

from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket, find_buckets
from trainyard.aws.stack_key import STACK_KEY_USAGE, key_description, key_policy
from trainyard.config.project import NAME
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import Display

_NAME_PREFIX = "trainyard-data-"  # as the Pulumi program names it
INDEX_TIMEOUT_SECONDS = 180.0


def find_data_bucket(cluster: Cluster, settings: StackSettings) -> Bucket | None:
    """Return the data bucket of the stack; None if it does not exist.

    Raises InputError if the bucket in storage.bucket does not exist.
    """
    if name := settings.storage.bucket:
        bucket = Bucket(name, cluster.region)
        if not bucket.exists():
            fix = "Create it, or remove the key: the stack then creates one"
            raise InputError([invalid_setting("storage.bucket", name, "does not exist", fix, "bucket_missing")])
        return bucket
    try:
        return cluster.data
    except InputError as error:
        if error.problems[0].code != "data_bucket_missing":
            raise
    return _find_new_bucket(cluster)


def _find_new_bucket(cluster: Cluster) -> Bucket | None:
    """Return a bucket that AWS's tag index does not list yet; None without one, or without permission to list."""
    s3, expected = client("s3", cluster.region), {tags.STACK: cluster.stack, tags.ROLE: tags.DATA_BUCKET}
    try:
        names = [item["Name"] for item in s3.list_buckets()["Buckets"] if item["Name"].startswith(_NAME_PREFIX)]
    except ClientError:
        return None
    for name in names:
        try:
            bucket_tags = {tag["Key"]: tag["Value"] for tag in s3.get_bucket_tagging(Bucket=name)["TagSet"]}
        except ClientError:  # without tags, or of another owner
            continue
        if expected.items() <= bucket_tags.items():
            bucket = Bucket(name, cluster.region)
            return bucket if bucket.region() == cluster.region else None
    return None


def create_data_bucket(cluster: Cluster, settings: StackSettings, display: Display) -> Bucket:
    """Create the data bucket, and the stack's KMS key unless the settings name one or it exists.

    Returns when AWS's tag index lists both, so that the next `pulumi up` finds them. Raises TimeoutError.
    """
    region, own_key = cluster.region, settings.storage.kms_key is None
    key = settings.storage.kms_key or _find_key(cluster) or _create_key(cluster, settings)
    name = _NAME_PREFIX + secrets.token_hex(4)
    s3 = client("s3", region)
    # us-east-1 is the only region that S3 does not accept as LocationConstraint.
    location: Any = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=name, **location)
    bucket_tags = {
        **_tags(cluster, settings, tags.DATA_BUCKET),
        tags.KMS_KEY: settings.storage.kms_key or tags.STACK_KEY,
    }
    s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags.tag_list(bucket_tags)})
    _configure(s3, name, key)
    display.line("data", f"created the bucket {name}; trainyard up -s {cluster.stack} imports it")
    _wait_for_index(cluster, name, key if own_key else None, display)
    return Bucket(name, region)


def _tags(cluster: Cluster, settings: StackSettings, role: str) -> dict[str, str]:
    return {**settings.tags, **tags.own_tags(NAME, cluster.stack, role)}


def _find_key(cluster: Cluster) -> str | None:
    """Return the ARN of the stack's enabled key; None without one."""
    filters: Mapping[str, str] = {tags.STACK: cluster.stack, tags.ROLE: tags.STACK_KEY}
    response = client("resourcegroupstaggingapi", cluster.region).get_resources(
        TagFilters=[{"Key": key, "Values": [value]} for key, value in filters.items()], ResourceTypeFilters=["kms:key"]
    )
    kms = client("kms", cluster.region)
    arns = [item["ResourceARN"] for item in response["ResourceTagMappingList"]]
    enabled = (arn for arn in arns if kms.describe_key(KeyId=arn)["KeyMetadata"]["KeyState"] == "Enabled")
    return next(enabled, None)


def _create_key(cluster: Cluster, settings: StackSettings) -> str:
    """Create the stack's key as the Pulumi program does. Returns its ARN."""
    region, kms = cluster.region, client("kms", cluster.region)
    account = client("sts", region).get_caller_identity()["Account"]
    policy = key_policy(account, region, boto3.Session().get_partition_for_region(region))
    created = kms.create_key(
        Description=key_description(cluster.stack, STACK_KEY_USAGE),
        Policy=json.dumps(policy),
        Tags=[{"TagKey": key, "TagValue": value} for key, value in _tags(cluster, settings, tags.STACK_KEY).items()],
    )["KeyMetadata"]
    kms.enable_key_rotation(KeyId=created["KeyId"])
    return str(created["Arn"])


def _configure(s3: Any, name: str, key: str) -> None:
    """Configure the bucket as the Pulumi program does, except for the lifecycle, which the first update adds."""
    access = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=dict.fromkeys(access, True))
    default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    rule = {"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": True}
    s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})


def _wait_for_index(cluster: Cluster, name: str, key: str | None, display: Display) -> None:
    display.detail("data", "waits until AWS's tag index lists the bucket")
    expected = {tags.STACK: cluster.stack, tags.ROLE: tags.DATA_BUCKET}
    deadline = time.monotonic() + INDEX_TIMEOUT_SECONDS
    while find_buckets(cluster.region, expected) != [name] or (key is not None and _find_key(cluster) != key):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"AWS's tag index does not list {name} after {INDEX_TIMEOUT_SECONDS:.0f} s: run the command again "
                f"before trainyard up -s {cluster.stack}"
            )
        time.sleep(0.5)
