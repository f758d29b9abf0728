"""Lookups of existing S3 buckets and KMS keys."""

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.adapter.aws_clients import AwsClients
from rehearsal.adapter.handler import InputKeys, input_keys


def _bucket(aws: AwsClients, arguments: Mapping[str, Any]) -> dict[str, Any]:
    name = arguments["bucket"]
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


def _key(aws: AwsClients, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Look up a key by its id, its alias, or the ARN of either. The result has the key's own id and ARN."""
    key = aws.client("kms").describe_key(KeyId=arguments["keyId"])["KeyMetadata"]
    deletion_date = key.get("DeletionDate")
    return {
        "id": key["KeyId"],
        "arn": key["Arn"],
        "awsAccountId": key["AWSAccountId"],
        "creationDate": key["CreationDate"].isoformat(),
        "customerMasterKeySpec": key["KeySpec"],
        "deletionDate": deletion_date.isoformat() if deletion_date else "",
        "description": key["Description"],
        "enabled": key["Enabled"],
        "keyId": arguments["keyId"],
        "keyManager": key["KeyManager"],
        "keySpec": key["KeySpec"],
        "keyState": key["KeyState"],
        "keyUsage": key["KeyUsage"],
        "multiRegion": key.get("MultiRegion", False),
        "origin": key["Origin"],
        "region": aws.region,
    }


STORAGE_LOOKUPS: dict[str, tuple[InputKeys, Callable[[AwsClients, Mapping[str, Any]], dict[str, Any]]]] = {
    "aws:s3/getBucket:getBucket": (input_keys("bucket"), _bucket),
    "aws:kms/getKey:getKey": (input_keys("keyId"), _key),
}
