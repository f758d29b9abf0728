"""Lookups of existing S3 buckets and KMS keys."""

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

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
    is_downloaded = arguments.get("downloadBody") != "false"
    try:
        response = (s3.get_object if is_downloaded else s3.head_object)(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            raise missing_object_error(bucket, key) from error
        raise
    content_type = response["ContentType"]
    is_text = is_downloaded and (content_type.startswith("text/") or content_type in _TEXT_TYPES)
    return {
        "id": f"{bucket}/{key}",
        "bucket": bucket,
        "key": key,
        "body": response["Body"].read().decode() if is_text else "",
        "contentLength": response["ContentLength"],
        "contentType": content_type,
        "serverSideEncryption": response.get("ServerSideEncryption", ""),
        "sseKmsKeyId": response.get("SSEKMSKeyId", ""),
        "storageClass": response.get("StorageClass", "STANDARD"),
        "etag": response["ETag"].strip('"'),
    }


def _objects(aws: AwsClients, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """List keys, at most `maxKeys`. Source: terraform-provider-aws, s3/objects_data_source.go."""
    bucket, prefix = arguments["bucket"], arguments.get("prefix", "")
    pages = aws.client("s3").get_paginator("list_objects_v2")
    limits = {"MaxItems": arguments.get("maxKeys", 1000), "PageSize": 1000}
    listed = pages.paginate(Bucket=bucket, Prefix=prefix, PaginationConfig=limits)
    keys = [item["Key"] for page in listed for item in page.get("Contents", [])]
    return {"id": bucket, "keys": keys, "commonPrefixes": [], "owners": [], "requestCharged": "", **arguments}


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
    # S3 serves a bucket of any region through one endpoint of the emulated AWS, so `region` has no effect.
    "aws:s3/getObject:getObject": (input_keys("bucket", "key", "region", "downloadBody"), _object),
    "aws:s3/getObjects:getObjects": (input_keys("bucket", "prefix", "maxKeys", "region"), _objects),
    "aws:kms/getKey:getKey": (input_keys("keyId", "region"), _key),
}
