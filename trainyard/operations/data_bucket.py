"""The data bucket of a stack: find it, or create it with its KMS key before the first `pulumi up`, which imports both.

The Pulumi program finds bucket and key by their tags (infra/lookups/retained.py), and writes the configuration of the
bucket again.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.exceptions import ClientError

from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.s3 import ABORT_UPLOADS_DAYS, Bucket, find_buckets
from trainyard.aws.stack_key import STACK_KEY_USAGE, key_description, key_policy
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import Display

_NAME_PREFIX = "trainyard-data-"  # as the Pulumi program names it
INDEX_TIMEOUT_SECONDS = 180.0
POLL_SECONDS = 0.5


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
    s3, expected = client("s3", cluster.region), {tags.STACK: cluster.stack_tag, tags.ROLE: tags.DATA_BUCKET}
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

    A bucket that cannot be configured is deleted. Returns when AWS's tag index lists bucket and key, so that the next
    `pulumi up` finds them. Raises TimeoutError.
    """
    region = cluster.region
    key = _ensure_key(cluster, settings, display)
    name = _NAME_PREFIX + secrets.token_hex(4)
    s3 = client("s3", region)
    # us-east-1 is the only region that S3 does not accept as LocationConstraint.
    location: Any = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=name, **location)
    bucket_tags = {
        **_tags(cluster, settings, tags.DATA_BUCKET),
        tags.KMS_KEY: settings.storage.kms_key or tags.STACK_KEY,
    }
    try:
        _configure(s3, name, key)
        # Last: the tags mark a bucket that is ready for objects.
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags.tag_list(bucket_tags)})
    except BaseException:
        try:
            s3.delete_bucket(Bucket=name)
        except ClientError as error:
            display.line("data", f"delete the empty bucket {name}, which could not be configured: {error}")
        raise
    display.line("data", f"created the bucket {name}; trainyard up -s {cluster.stack} imports it")
    expected = {tags.STACK: cluster.stack_tag, tags.ROLE: tags.DATA_BUCKET}
    _wait_for_index(cluster, f"the bucket {name}", lambda: find_buckets(region, expected) == [name], display)
    return Bucket(name, region)


def ensure_configured(cluster: Cluster, settings: StackSettings, bucket: Bucket, display: Display) -> None:
    """Configure the stack's bucket if it is not encrypted with a KMS key: an update stopped after it created it."""
    s3 = client("s3", cluster.region)
    try:
        rules = s3.get_bucket_encryption(Bucket=bucket.name)["ServerSideEncryptionConfiguration"]["Rules"]
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "AccessDenied":
            return  # a user who may not read the configuration may not change it
        if code != "ServerSideEncryptionConfigurationNotFoundError":
            raise
        rules = []
    if not any(rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"].startswith("aws:kms") for rule in rules):
        _configure(s3, bucket.name, _ensure_key(cluster, settings, display))
        display.line("data", f"configured the bucket {bucket.name}, which had no encryption with a KMS key")


def _tags(cluster: Cluster, settings: StackSettings, role: str) -> dict[str, str]:
    return {**settings.tags, **tags.own_tags(cluster.project_name, cluster.stack, role)}


def _find_key(cluster: Cluster) -> str | None:
    """Return the ARN of the stack's enabled key; None without one."""
    filters: Mapping[str, str] = {tags.STACK: cluster.stack_tag, tags.ROLE: tags.STACK_KEY}
    response = client("resourcegroupstaggingapi", cluster.region).get_resources(
        TagFilters=[{"Key": key, "Values": [value]} for key, value in filters.items()], ResourceTypeFilters=["kms:key"]
    )
    kms = client("kms", cluster.region)
    arns = [item["ResourceARN"] for item in response["ResourceTagMappingList"]]
    enabled = (arn for arn in arns if kms.describe_key(KeyId=arn)["KeyMetadata"]["KeyState"] == "Enabled")
    return next(enabled, None)


def _ensure_key(cluster: Cluster, settings: StackSettings, display: Display) -> str:
    """Return the ARN of the key of the data bucket; create the stack's key if there is none."""
    return settings.storage.kms_key or _find_key(cluster) or _create_key(cluster, settings, display)


def _create_key(cluster: Cluster, settings: StackSettings, display: Display) -> str:
    """Create the stack's key as the Pulumi program does. Returns its ARN when AWS's tag index lists the key.

    Until then, a repeated command would create another key.
    """
    region, kms = cluster.region, client("kms", cluster.region)
    account = client("sts", region).get_caller_identity()["Account"]
    policy = key_policy(account, region, boto3.Session().get_partition_for_region(region))
    created = kms.create_key(
        Description=key_description(cluster.stack, STACK_KEY_USAGE),
        Policy=json.dumps(policy),
        Tags=[{"TagKey": key, "TagValue": value} for key, value in _tags(cluster, settings, tags.STACK_KEY).items()],
    )["KeyMetadata"]
    arn = str(created["Arn"])
    _wait_for_index(cluster, f"the KMS key {arn}", lambda: _find_key(cluster) == arn, display)
    kms.enable_key_rotation(KeyId=created["KeyId"])
    return arn


def _configure(s3: Any, name: str, key: str) -> None:
    """Configure the bucket as the Pulumi program does; the first update adds its policy and more lifecycle rules."""
    access = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=dict.fromkeys(access, True))
    default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    rule = {"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": True}
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    abort = {"DaysAfterInitiation": ABORT_UPLOADS_DAYS}
    lifecycle = {"ID": "abort-uploads", "Status": "Enabled", "Filter": {"Prefix": ""}}
    s3.put_bucket_lifecycle_configuration(
        Bucket=name, LifecycleConfiguration={"Rules": [{**lifecycle, "AbortIncompleteMultipartUpload": abort}]}
    )
    # Last: ensure_configured recognizes a configured bucket by its encryption.
    s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})


def _wait_for_index(cluster: Cluster, resource: str, is_listed: Callable[[], bool], display: Display) -> None:
    display.detail("data", f"waits until AWS's tag index lists {resource}")
    deadline = time.monotonic() + INDEX_TIMEOUT_SECONDS
    while not is_listed():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"AWS's tag index does not list {resource} after {INDEX_TIMEOUT_SECONDS:.0f} s: run the command again "
                f"before trainyard up -s {cluster.stack}"
            )
        time.sleep(POLL_SECONDS)
