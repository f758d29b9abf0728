"""S3 as the Pulumi program configures it and as the nodes use it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.aws.conftest import Client

AWS_CLI = Path(sys.executable).parent / "aws"
MIB = 1024 * 1024


@pytest.fixture
def bucket(client: Client, name: str) -> str:
    client("s3").create_bucket(Bucket=f"bucket-{name}")
    return f"bucket-{name}"


def test_bucket_stores_the_settings(client: Client, bucket: str) -> None:
    s3, which = client("s3"), {"Bucket": bucket}
    s3.put_bucket_versioning(**which, VersioningConfiguration={"Status": "Enabled"})
    rules = [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": True}]
    s3.put_bucket_encryption(**which, ServerSideEncryptionConfiguration={"Rules": rules})
    block = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True)
    s3.put_public_access_block(**which, PublicAccessBlockConfiguration=block)
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{bucket}/*"}
    deny["Condition"] = {"Bool": {"aws:SecureTransport": "false"}}  # type: ignore[assignment]
    policy = {"Version": "2012-10-17", "Statement": [deny]}
    s3.put_bucket_policy(**which, Policy=json.dumps(policy))
    lifecycle = [
        {
            "ID": "clean",
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 7},
        }
    ]
    s3.put_bucket_lifecycle_configuration(**which, LifecycleConfiguration={"Rules": lifecycle})
    ownership = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    s3.put_bucket_ownership_controls(**which, OwnershipControls=ownership)

    assert s3.get_bucket_versioning(**which)["Status"] == "Enabled"
    assert s3.get_bucket_encryption(**which)["ServerSideEncryptionConfiguration"]["Rules"] == rules
    assert s3.get_public_access_block(**which)["PublicAccessBlockConfiguration"] == block
    assert json.loads(s3.get_bucket_policy(**which)["Policy"]) == policy
    assert s3.get_bucket_lifecycle_configuration(**which)["Rules"] == lifecycle
    assert s3.get_bucket_ownership_controls(**which)["OwnershipControls"] == ownership


OWNED_CALLS: dict[str, Callable[[Any, dict[str, str], str], Any]] = {
    "put": lambda s3, target, owner: s3.put_object(**target, Body=b"x", ExpectedBucketOwner=owner),
    "get": lambda s3, target, owner: s3.get_object(**target, ExpectedBucketOwner=owner),
    "list": lambda s3, target, owner: s3.list_objects_v2(Bucket=target["Bucket"], ExpectedBucketOwner=owner),
    "copy": lambda s3, target, owner: s3.copy_object(
        Bucket=target["Bucket"], Key="y", CopySource=target, ExpectedSourceBucketOwner=owner
    ),
}


@pytest.mark.parametrize("call", OWNED_CALLS)
def test_requests_that_expect_another_owner_are_denied(client: Client, bucket: str, call: str) -> None:
    s3, target = client("s3"), {"Bucket": bucket, "Key": "x"}
    s3.put_object(**target, Body=b"x")
    OWNED_CALLS[call](s3, target, ACCOUNT)
    with pytest.raises(ClientError) as denied:
        OWNED_CALLS[call](s3, target, "999999999999")
    assert denied.value.response["Error"]["Code"] == "AccessDenied"
    assert denied.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


@pytest.mark.parametrize(("secure", "allowed"), [("false", True), ("true", False)])
def test_policy_denies_only_if_the_condition_holds(client: Client, bucket: str, secure: str, allowed: bool) -> None:
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": f"arn:aws:s3:::{bucket}/*",
        "Condition": {"Bool": {"aws:SecureTransport": secure}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    client("s3").put_bucket_policy(Bucket=bucket, Policy=policy)
    if allowed:
        client("s3").put_object(Bucket=bucket, Key="x", Body=b"x")
        assert client("s3").get_object(Bucket=bucket, Key="x")["Body"].read() == b"x"
    else:
        with pytest.raises(ClientError, match=r"AccessDenied|Forbidden"):
            client("s3").put_object(Bucket=bucket, Key="x", Body=b"x")


def test_get_resources_returns_a_bucket_by_tags(client: Client, bucket: str) -> None:
    tags = [{"Key": "trainyard:stack", "Value": bucket}, {"Key": "trainyard:role", "Value": "data-bucket"}]
    client("s3").put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    filters = [{"Key": tag["Key"], "Values": [tag["Value"]]} for tag in tags]
    result = client("resourcegroupstaggingapi").get_resources(TagFilters=filters, ResourceTypeFilters=["s3"])
    assert [entry["ResourceARN"] for entry in result["ResourceTagMappingList"]] == [f"arn:aws:s3:::{bucket}"]
    filters[0]["Values"] = ["other"]
    assert client("resourcegroupstaggingapi").get_resources(TagFilters=filters)["ResourceTagMappingList"] == []


def test_bucket_with_objects_cannot_be_deleted(client: Client, bucket: str) -> None:
    s3 = client("s3")
    s3.put_object(Bucket=bucket, Key="x", Body=b"x")
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        s3.delete_bucket(Bucket=bucket)


def test_bucket_with_noncurrent_versions_cannot_be_deleted(client: Client, bucket: str) -> None:
    s3 = client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=bucket, Key="x", Body=b"x")
    s3.delete_object(Bucket=bucket, Key="x")
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        s3.delete_bucket(Bucket=bucket)
    listing = s3.list_object_versions(Bucket=bucket)
    for entry in [*listing["Versions"], *listing["DeleteMarkers"]]:
        s3.delete_object(Bucket=bucket, Key="x", VersionId=entry["VersionId"])
    s3.delete_bucket(Bucket=bucket)


def test_versions_and_delete_markers_are_deleted_together(client: Client, bucket: str) -> None:
    """As by `pulumi destroy`, which suspends versioning before it empties the bucket."""
    s3 = client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for _ in range(2):
        s3.put_object(Bucket=bucket, Key="x", Body=b"x")
        s3.delete_object(Bucket=bucket, Key="x")
    listing = s3.list_object_versions(Bucket=bucket)
    entries = [*listing["Versions"], *listing["DeleteMarkers"]]
    objects = [{"Key": "x", "VersionId": entry["VersionId"]} for entry in entries]
    assert len(objects) == 4
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    assert not s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True}).get("Errors")
    s3.delete_bucket(Bucket=bucket)


def test_listing_continues_after_a_key(client: Client, bucket: str) -> None:
    for number in range(5):
        client("s3").put_object(Bucket=bucket, Key=f"events/{number:08d}.jsonl", Body=b"{}")
    result = client("s3").list_objects_v2(Bucket=bucket, Prefix="events/", StartAfter="events/00000002.jsonl")
    assert [entry["Key"][-7:-6] for entry in result["Contents"]] == ["3", "4"]


def test_byte_range_of_an_object_is_read(client: Client, bucket: str) -> None:
    client("s3").put_object(Bucket=bucket, Key="x", Body=bytes(range(256)))
    response = client("s3").get_object(Bucket=bucket, Key="x", Range="bytes=10-19")
    assert response["Body"].read() == bytes(range(10, 20))
    assert response["ContentRange"] == "bytes 10-19/256"


def test_aws_cli_works(aws: EmulatedAws, client: Client, bucket: str, tmp_path: Path) -> None:
    def cli(*arguments: str) -> Any:
        environment = {**aws.environment(), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        process = subprocess.run(
            [AWS_CLI, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return process.stdout

    file = tmp_path / "large.bin"
    file.write_bytes(os.urandom(9 * MIB))
    cli("s3", "cp", str(file), f"s3://{bucket}/large.bin", "--no-progress")
    assert client("s3").get_object(Bucket=bucket, Key="large.bin")["Body"].read() == file.read_bytes()
    result = json.loads(cli("ec2", "describe-instance-types", "--instance-types", "p4d.24xlarge"))
    assert result["InstanceTypes"][0]["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] == 4


CONNECTOR = """
import os, sys
from s3torchconnector import S3ClientConfig, S3Checkpoint
from s3torchconnector._s3client import S3Client
config = S3ClientConfig(force_path_style=True, part_size=8 * 1024 * 1024)
checkpoint = S3Checkpoint("us-east-1", s3client_config=config)
uri, size = sys.argv[1], int(sys.argv[2])
data = os.urandom(size)
with checkpoint.writer(uri) as writer:
    writer.write(data)
with checkpoint.reader(uri) as reader:
    reader.seek(size // 2)
    assert reader.read(1000) == data[size // 2:][:1000]
    reader.seek(0)
    assert reader.read() == data
bucket, _, key = uri.removeprefix("s3://").partition("/")
pages = S3Client("us-east-1", s3client_config=config).list_objects(bucket, "steps/")
listed = [item.key for page in pages for item in page.object_info]
assert listed == [key], listed
"""


def test_checkpoint_connector_writes_parts_and_reads_ranges(
    aws: EmulatedAws, client: Client, bucket: str, tmp_path: Path
) -> None:
    before = len(aws.journal())
    arguments = [sys.executable, "-c", CONNECTOR, f"s3://{bucket}/steps/10/part.distcp", str(20 * MIB)]
    environment = {**aws.environment(), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    process = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    entries = aws.journal()[before:]
    assert [entry.operation for entry in entries].count("UploadPart") == 3
    assert {"CreateMultipartUpload", "CompleteMultipartUpload", "GetObject"} <= {entry.operation for entry in entries}
    assert [entry for entry in entries if entry.status >= 500] == []
    assert client("s3").head_object(Bucket=bucket, Key="steps/10/part.distcp")["ContentLength"] == 20 * MIB


@cache
def in_region(aws: EmulatedAws, region: str, *credentials: str) -> Any:
    session = boto3.Session(*credentials, region_name=region) if credentials else aws.session(region=region)
    return session.client("s3", endpoint_url=aws.endpoint)


def create(s3: Any, name: str) -> tuple[str | None, int]:
    """Create a bucket and return the error code, if any, and the HTTP status."""
    region = s3.meta.region_name
    where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    try:
        return None, int(s3.create_bucket(Bucket=name, **where)["ResponseMetadata"]["HTTPStatusCode"])
    except ClientError as error:
        return str(error.response["Error"]["Code"]), int(error.response["ResponseMetadata"]["HTTPStatusCode"])


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1"])
def test_bucket_name_of_another_account_is_refused(aws: EmulatedAws, client: Client, name: str, region: str) -> None:
    role = "arn:aws:iam::999999999999:role/other"
    credentials = client("sts").assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    other = credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"]
    assert create(in_region(aws, "us-east-1", *other), f"taken-{name}") == (None, 200)
    assert create(in_region(aws, region), f"taken-{name}") == ("BucketAlreadyExists", 409)


@pytest.mark.parametrize(
    ("first", "again", "response"),
    [
        ("us-east-1", "us-east-1", (None, 200)),
        ("eu-west-1", "eu-west-1", ("BucketAlreadyOwnedByYou", 409)),
        ("eu-west-1", "us-east-1", ("BucketAlreadyOwnedByYou", 409)),
        ("us-east-1", "eu-west-1", ("BucketAlreadyOwnedByYou", 409)),
    ],
)
def test_creating_an_existing_bucket_depends_on_the_region(
    aws: EmulatedAws, name: str, first: str, again: str, response: tuple[str | None, int]
) -> None:
    assert create(in_region(aws, first), f"again-{name}") == (None, 200)
    assert create(in_region(aws, again), f"again-{name}") == response


def test_creating_an_existing_bucket_keeps_the_objects(client: Client, bucket: str) -> None:
    client("s3").put_object(Bucket=bucket, Key="x", Body=b"x")
    client("s3").create_bucket(Bucket=bucket)
    assert client("s3").get_object(Bucket=bucket, Key="x")["Body"].read() == b"x"
