"""S3 buckets, bucket settings and objects."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from botocore.exceptions import ClientError

from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, api_name, input_keys, tag_list
from rehearsal.adapter.lifecycle_rules import RULE_KEYS, to_api_rule
from rehearsal.adapter.refresh import tag_dict, to_input_names


class Bucket(Handler):
    """An S3 bucket. `forceDestroy`: its deletion first deletes all object versions."""

    type = "aws:s3/bucket:Bucket"
    keys = input_keys("bucket", "forceDestroy", "tags")
    unreported = frozenset({"forceDestroy"})
    name_input = "bucket"
    replace_on_changes = frozenset({"bucket"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the bucket."""
        s3 = call.aws.client("s3")
        name = self.physical_name(call)
        region = call.aws.region
        # us-east-1 is the only region that S3 does not accept as LocationConstraint.
        location = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        s3.create_bucket(Bucket=name, **location)
        if call.tags:
            s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": call.tags})
        return name, self._outputs(call, name)

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the bucket's tags, or None when it does not exist."""
        try:
            tags = call.aws.client("s3").get_bucket_tagging(Bucket=call.id)["TagSet"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchTagSet":
                raise
            tags = []
        inputs = {"bucket": call.id, "tags": tag_dict(tags)}
        return ReadResult(inputs=inputs, outputs=self._outputs(call, call.id))

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        if call.has_changed("tags"):  # `forceDestroy` is not an AWS setting: only delete() reads it
            call.aws.client("s3").put_bucket_tagging(Bucket=call.id, Tagging={"TagSet": call.tags})
        return {}

    def delete(self, call: HandlerCall) -> None:
        """Delete the bucket, with its objects when `forceDestroy` is set."""
        s3 = call.aws.client("s3")
        if call.inputs.get("forceDestroy"):
            self._empty(s3, call.id)
        s3.delete_bucket(Bucket=call.id)

    def _outputs(self, call: HandlerCall, name: str) -> dict[str, Any]:
        return {"bucket": name, "arn": f"arn:aws:s3:::{name}", "region": call.aws.region}

    def _empty(self, s3: Any, bucket: str) -> None:
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            entries = page.get("Versions", []) + page.get("DeleteMarkers", [])
            objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
            if objects:
                response = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
                assert not response.get("Errors"), response["Errors"]


class _Setting(Handler):
    """A setting of a bucket. The names of the S3 client's methods are `put_operation`, and so on."""

    put_operation: str
    get_operation: str
    delete_operation: str
    replace_on_changes = frozenset({"bucket"})

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        raise NotImplementedError

    def create(self, call: HandlerCall) -> CreateResult:
        """Put the setting."""
        bucket = call.inputs["bucket"]
        getattr(call.aws.client("s3"), self.put_operation)(Bucket=bucket, **self.arguments(call))
        return bucket, {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Put the setting again."""
        self.create(call)
        return {}

    def current(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the get operation under the inputs' names, without the bucket."""
        raise NotImplementedError

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current setting, or None when it or the bucket does not exist."""
        response = getattr(call.aws.client("s3"), self.get_operation)(Bucket=call.id)
        return ReadResult(inputs={"bucket": call.id, **self.current(response)})

    def delete(self, call: HandlerCall) -> None:
        """Delete the setting."""
        getattr(call.aws.client("s3"), self.delete_operation)(Bucket=call.inputs["bucket"])


class Versioning(_Setting):
    """The versioning of a bucket."""

    type = "aws:s3/bucketVersioning:BucketVersioning"
    keys = input_keys("bucket", versioningConfiguration=input_keys("status"))
    put_operation, get_operation = "put_bucket_versioning", "get_bucket_versioning"

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        return {"VersioningConfiguration": {"Status": call.inputs["versioningConfiguration"]["status"]}}

    def current(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the get operation under the inputs' names, without the bucket."""
        return {"versioningConfiguration": {"status": response.get("Status", "Disabled")}}

    def delete(self, call: HandlerCall) -> None:
        """Suspend versioning."""
        suspended = {"Status": "Suspended"}  # S3 can suspend versioning, but not remove it
        call.aws.client("s3").put_bucket_versioning(Bucket=call.inputs["bucket"], VersioningConfiguration=suspended)


_DEFAULT_ENCRYPTION_NAMES = {"sseAlgorithm": "SSEAlgorithm", "kmsMasterKeyId": "KMSMasterKeyID"}


class Encryption(_Setting):
    """The default encryption of a bucket."""

    type = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    keys = input_keys(
        "bucket",
        rules=input_keys(
            "bucketKeyEnabled", applyServerSideEncryptionByDefault=input_keys("sseAlgorithm", "kmsMasterKeyId")
        ),
    )
    put_operation, get_operation = "put_bucket_encryption", "get_bucket_encryption"
    delete_operation = "delete_bucket_encryption"

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        rules = [
            {
                "ApplyServerSideEncryptionByDefault": {
                    _DEFAULT_ENCRYPTION_NAMES[key]: value
                    for key, value in rule["applyServerSideEncryptionByDefault"].items()
                },
                "BucketKeyEnabled": rule.get("bucketKeyEnabled", False),
            }
            for rule in call.inputs["rules"]
        ]
        return {"ServerSideEncryptionConfiguration": {"Rules": rules}}

    def current(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the get operation under the inputs' names, without the bucket."""
        special = {api: key for key, api in _DEFAULT_ENCRYPTION_NAMES.items()}
        return {"rules": to_input_names(response["ServerSideEncryptionConfiguration"]["Rules"], **special)}


class PublicAccessBlock(_Setting):
    """The public access block of a bucket."""

    type = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    keys = input_keys("bucket", "blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    put_operation, get_operation = "put_public_access_block", "get_public_access_block"
    delete_operation = "delete_public_access_block"

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        blocks = {api_name(key): value for key, value in call.inputs.items() if key != "bucket"}
        return {"PublicAccessBlockConfiguration": blocks}

    def current(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the get operation under the inputs' names, without the bucket."""
        current: dict[str, Any] = to_input_names(response["PublicAccessBlockConfiguration"])
        return current


class Policy(_Setting):
    """The policy of a bucket."""

    type = "aws:s3/bucketPolicy:BucketPolicy"
    keys = input_keys("bucket", "policy")
    put_operation, get_operation = "put_bucket_policy", "get_bucket_policy"
    delete_operation = "delete_bucket_policy"

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        return {"Policy": call.inputs["policy"]}

    def current(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the get operation under the inputs' names, without the bucket."""
        return {"policy": response["Policy"]}


class Lifecycle(_Setting):
    """The lifecycle rules of a bucket."""

    type = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    keys = input_keys("bucket", "transitionDefaultMinimumObjectSize", rules=RULE_KEYS)
    unreported = frozenset({"transitionDefaultMinimumObjectSize"})
    put_operation, get_operation = "put_bucket_lifecycle_configuration", "get_bucket_lifecycle_configuration"
    delete_operation = "delete_bucket_lifecycle"

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        minimum_size = call.api_arguments(transitionDefaultMinimumObjectSize="TransitionDefaultMinimumObjectSize")
        return {
            "LifecycleConfiguration": {"Rules": [to_api_rule(rule) for rule in call.inputs["rules"]]},
            **minimum_size,
        }

    def current(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the get operation under the inputs' names, without the bucket."""
        return {"rules": to_input_names(response["Rules"], ID="id")}


class ObjectLock(_Setting):
    """Object Lock of a versioned bucket, without a default retention."""

    type = "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration"
    keys = input_keys("bucket", "objectLockEnabled")
    put_operation, get_operation = "put_object_lock_configuration", "get_object_lock_configuration"

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        return {"ObjectLockConfiguration": call.api_arguments(objectLockEnabled="ObjectLockEnabled")}

    def current(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the get operation under the inputs' names, without the bucket."""
        return {"objectLockEnabled": response["ObjectLockConfiguration"]["ObjectLockEnabled"]}

    def delete(self, call: HandlerCall) -> None:
        """Keep the setting: S3 cannot disable it."""


class Logging(_Setting):
    """Server access logging of a bucket."""

    type = "aws:s3/bucketLogging:BucketLogging"
    keys = input_keys("bucket", "targetBucket", "targetPrefix")
    put_operation, get_operation = "put_bucket_logging", "get_bucket_logging"

    def arguments(self, call: HandlerCall) -> dict[str, Any]:
        """Return the arguments of the put operation, without the bucket."""
        target = call.api_arguments(targetBucket="TargetBucket", targetPrefix="TargetPrefix")
        return {"BucketLoggingStatus": {"LoggingEnabled": target}}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current setting, or None when the bucket has none."""
        response = call.aws.client("s3").get_bucket_logging(Bucket=call.id)
        target = response.get("LoggingEnabled")
        return target and ReadResult(inputs={"bucket": call.id, **to_input_names(target)})

    def delete(self, call: HandlerCall) -> None:
        """Disable access logging."""
        call.aws.client("s3").put_bucket_logging(Bucket=call.inputs["bucket"], BucketLoggingStatus={})


class Object(Handler):
    """An S3 object with the content of a file or a text."""

    type = "aws:s3/bucketObjectv2:BucketObjectv2"
    keys = input_keys("bucket", "key", "source", "content", "contentType", "tags")
    unreported = frozenset({"source", "content"})
    replace_on_changes = frozenset({"bucket", "key"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Write the object."""
        inputs = call.inputs
        response = call.aws.client("s3").put_object(
            Bucket=inputs["bucket"],
            Key=inputs["key"],
            Body=_content(inputs),
            Tagging=urlencode({tag["Key"]: tag["Value"] for tag in tag_list(inputs.get("tags"))}),
            **call.api_arguments(contentType="ContentType"),
        )
        return f"{inputs['bucket']}/{inputs['key']}", {"etag": response["ETag"].strip('"')}

    def outputs_changed_by(self, changed: Collection[str]) -> frozenset[str]:
        """A new content has a new ETag."""
        return frozenset() if set(changed) <= {"tags"} else frozenset({"etag"})

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Write the object again, or update only its tags."""
        if call.has_changed(*(self.keys.keys() - {"tags"})):
            return self.create(call)[1]
        target = {"Bucket": call.inputs["bucket"], "Key": call.inputs["key"]}
        call.aws.client("s3").put_object_tagging(**target, Tagging={"TagSet": call.tags})
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the object's tags and ETag, or None when it does not exist. As with the provider, not its content."""
        bucket, key = (self.required_input(call, name) for name in ("bucket", "key"))
        s3, target = call.aws.client("s3"), {"Bucket": bucket, "Key": key}
        try:
            response = s3.head_object(**target)
        except ClientError as error:
            if error.response["Error"]["Code"] == "404":  # HEAD has no body with an error code
                return None
            raise
        tags = tag_dict(s3.get_object_tagging(**target)["TagSet"])
        inputs = {"bucket": bucket, "key": key, "contentType": response["ContentType"], "tags": tags}
        return ReadResult(inputs=inputs, outputs={"etag": response["ETag"].strip('"')})

    def delete(self, call: HandlerCall) -> None:
        """Delete all versions of the object, as the provider does in a versioned bucket. A missing bucket is no error.

        Source: https://github.com/hashicorp/terraform-provider-aws, internal/service/s3/object.go.
        """
        s3, bucket, key = call.aws.client("s3"), call.inputs["bucket"], call.inputs["key"]
        try:
            for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=key):
                for entry in page.get("Versions", []) + page.get("DeleteMarkers", []):
                    if entry["Key"] == key:
                        s3.delete_object(Bucket=bucket, Key=key, VersionId=entry["VersionId"])
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchBucket":
                raise


def _content(inputs: Mapping[str, Any]) -> bytes:
    """Return the input `content`, or the content of the asset `source`: a file or a text."""
    if "source" not in inputs:
        return str(inputs["content"]).encode()
    text = getattr(inputs["source"], "text", None)
    return Path(inputs["source"].path).read_bytes() if text is None else str(text).encode()


HANDLERS = (
    Bucket(),
    Versioning(),
    Encryption(),
    PublicAccessBlock(),
    Policy(),
    Lifecycle(),
    ObjectLock(),
    Logging(),
    Object(),
)
