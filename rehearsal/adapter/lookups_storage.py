"""Lookups of existing S3 buckets and KMS keys."""

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.adapter.aws_clients import AwsClients
from rehearsal.adapter.handler import InputKeys, input_keys
from rehearsal.adapter.lookup_results import missing_object_error


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


def _object(aws: AwsClients, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Look up an object, with the content of text types. Source: terraform-provider-aws, s3/object_data_source.go."""
    s3, bucket, key = aws.client("s3"), arguments["bucket"], arguments["key"]
    try:
        response = s3.get_object(Bucket=bucket, Key=key)
    except s3.exceptions.NoSuchKey as error:
        raise missing_object_error(bucket, key) from error
    content_type = response["ContentType"]
    is_text = content_type.startswith("text/") or content_type in _TEXT_TYPES
    return {
        "id": f"{bucket}/{key}",
        "bucket": bucket,
        "key": key,
        "body": response["Body"].read().decode() if is_text else "",
        "contentType": content_type,
        "etag": response["ETag"].strip('"'),
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


_TEXT_TYPES = {"application/json", "application/ld+json", "application/x-httpd-php", "application/xhtml+xml"}
STORAGE_LOOKUPS: dict[str, tuple[InputKeys, Callable[[AwsClients, Mapping[str, Any]], dict[str, Any]]]] = {
    "aws:s3/getBucket:getBucket": (input_keys("bucket"), _bucket),
    "aws:s3/getObject:getObject": (input_keys("bucket", "key"), _object),
    "aws:kms/getKey:getKey": (input_keys("keyId"), _key),
}
