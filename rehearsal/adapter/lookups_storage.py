"""Look-ups of what holds data: a bucket that is there, a key that is there."""

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.adapter.handler import Keys, known
from rehearsal.adapter.session import Aws


def _bucket(aws: Aws, given: Mapping[str, Any]) -> dict[str, Any]:
    name = given["bucket"]
    region = aws.client("s3").head_bucket(Bucket=name)["BucketRegion"]
    return {
        "id": name,
        "arn": f"arn:aws:s3:::{name}",
        "bucket": name,
        "bucketDomainName": f"{name}.s3.amazonaws.com",
        "bucketRegion": region,
        "bucketRegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
        "region": aws.region,
    }


def _key(aws: Aws, given: Mapping[str, Any]) -> dict[str, Any]:
    """`keyId` may be an id, an alias, or the ARN of either; the answer tells the key's own."""
    found = aws.client("kms").describe_key(KeyId=given["keyId"])["KeyMetadata"]
    ends = found.get("DeletionDate")
    return {
        "id": found["KeyId"],
        "arn": found["Arn"],
        "awsAccountId": found["AWSAccountId"],
        "creationDate": found["CreationDate"].isoformat(),
        "customerMasterKeySpec": found["KeySpec"],
        "deletionDate": ends.isoformat() if ends else "",
        "description": found["Description"],
        "enabled": found["Enabled"],
        "keyId": given["keyId"],
        "keyManager": found["KeyManager"],
        "keySpec": found["KeySpec"],
        "keyState": found["KeyState"],
        "keyUsage": found["KeyUsage"],
        "multiRegion": found.get("MultiRegion", False),
        "origin": found["Origin"],
        "region": aws.region,
    }


STORAGE_LOOK_UPS: dict[str, tuple[Keys, Callable[[Aws, Mapping[str, Any]], dict[str, Any]]]] = {
    "aws:s3/getBucket:getBucket": (known("bucket"), _bucket),
    "aws:kms/getKey:getKey": (known("keyId"), _key),
}
