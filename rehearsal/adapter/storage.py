"""S3: buckets, their settings, objects."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from botocore.exceptions import ClientError

from rehearsal.adapter.handler import Call, Found, Handler, Made, api_case, known, tag_list
from rehearsal.adapter.lifecycle_rules import RULE, api_rule


class Bucket(Handler):
    type = "aws:s3/bucket:Bucket"
    keys = known("bucket", "forceDestroy", "tags")
    named = "bucket"
    replaces = frozenset({"bucket"})

    def create(self, call: Call) -> Made:
        s3 = call.aws.client("s3")
        name = self.name_of(call)
        region = call.aws.region
        # us-east-1 is the one region that must not be named.
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        s3.create_bucket(Bucket=name, **place)
        if call.tags:
            s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": call.tags})
        return name, self._outputs(call, name)

    def read(self, call: Call) -> Found | None:
        try:
            tags = call.aws.client("s3").get_bucket_tagging(Bucket=call.id)["TagSet"]
        except ClientError as error:
            match error.response["Error"]["Code"]:
                case "NoSuchBucket":
                    return None
                case "NoSuchTagSet":
                    tags = []
                case _:
                    raise
        inputs = {"bucket": call.id, "tags": {tag["Key"]: tag["Value"] for tag in tags}}
        return Found(inputs=inputs, outputs=self._outputs(call, call.id))

    def update(self, call: Call) -> dict[str, Any]:
        if call.changed("tags"):  # `forceDestroy` is ours alone: a deletion reads it
            call.aws.client("s3").put_bucket_tagging(Bucket=call.id, Tagging={"TagSet": call.tags})
        return {}

    def delete(self, call: Call) -> None:
        s3 = call.aws.client("s3")
        if call.inputs.get("forceDestroy"):
            self._empty(s3, call.id)
        s3.delete_bucket(Bucket=call.id)

    def _outputs(self, call: Call, name: str) -> dict[str, Any]:
        return {"bucket": name, "arn": f"arn:aws:s3:::{name}", "region": call.aws.region}

    def _empty(self, s3: Any, bucket: str) -> None:
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            entries = page.get("Versions", []) + page.get("DeleteMarkers", [])
            objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
            if objects:
                answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
                assert not answer.get("Errors"), answer["Errors"]


class _Setting(Handler):
    """A setting of a bucket: one Put, and one call that takes it away."""

    put: str
    take: str
    replaces = frozenset({"bucket"})

    def arguments(self, call: Call) -> dict[str, Any]:
        raise NotImplementedError

    def create(self, call: Call) -> Made:
        bucket = call.inputs["bucket"]
        getattr(call.aws.client("s3"), self.put)(Bucket=bucket, **self.arguments(call))
        return bucket, {}

    def update(self, call: Call) -> dict[str, Any]:
        self.create(call)
        return {}

    def delete(self, call: Call) -> None:
        getattr(call.aws.client("s3"), self.take)(Bucket=call.inputs["bucket"])


class Versioning(_Setting):
    type = "aws:s3/bucketVersioning:BucketVersioning"
    keys = known("bucket", versioningConfiguration=known("status"))
    put = "put_bucket_versioning"

    def arguments(self, call: Call) -> dict[str, Any]:
        return {"VersioningConfiguration": {"Status": call.inputs["versioningConfiguration"]["status"]}}

    def delete(self, call: Call) -> None:
        suspended = {"Status": "Suspended"}  # once on it can't be taken away
        call.aws.client("s3").put_bucket_versioning(Bucket=call.inputs["bucket"], VersioningConfiguration=suspended)


_DEFAULTS = {"sseAlgorithm": "SSEAlgorithm", "kmsMasterKeyId": "KMSMasterKeyID"}


class Encryption(_Setting):
    type = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    keys = known(
        "bucket",
        rules=known("bucketKeyEnabled", applyServerSideEncryptionByDefault=known("sseAlgorithm", "kmsMasterKeyId")),
    )
    put, take = "put_bucket_encryption", "delete_bucket_encryption"

    def arguments(self, call: Call) -> dict[str, Any]:
        rules = [
            {
                "ApplyServerSideEncryptionByDefault": {
                    _DEFAULTS[key]: value for key, value in rule["applyServerSideEncryptionByDefault"].items()
                },
                "BucketKeyEnabled": rule.get("bucketKeyEnabled", False),
            }
            for rule in call.inputs["rules"]
        ]
        return {"ServerSideEncryptionConfiguration": {"Rules": rules}}


class PublicAccessBlock(_Setting):
    type = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    keys = known("bucket", "blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    put, take = "put_public_access_block", "delete_public_access_block"

    def arguments(self, call: Call) -> dict[str, Any]:
        blocks = {api_case(key): value for key, value in call.inputs.items() if key != "bucket"}
        return {"PublicAccessBlockConfiguration": blocks}


class Policy(_Setting):
    type = "aws:s3/bucketPolicy:BucketPolicy"
    keys = known("bucket", "policy")
    put, take = "put_bucket_policy", "delete_bucket_policy"

    def arguments(self, call: Call) -> dict[str, Any]:
        return {"Policy": call.inputs["policy"]}


class Lifecycle(_Setting):
    type = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    keys = known("bucket", "transitionDefaultMinimumObjectSize", rules=RULE)
    put, take = "put_bucket_lifecycle_configuration", "delete_bucket_lifecycle"

    def arguments(self, call: Call) -> dict[str, Any]:
        least = call.only(transitionDefaultMinimumObjectSize="TransitionDefaultMinimumObjectSize")
        return {"LifecycleConfiguration": {"Rules": [api_rule(rule) for rule in call.inputs["rules"]]}, **least}


class Object(Handler):
    type = "aws:s3/bucketObjectv2:BucketObjectv2"
    keys = known("bucket", "key", "source", "content", "contentType", "tags")
    replaces = frozenset({"bucket", "key"})

    def create(self, call: Call) -> Made:
        given = call.inputs
        answer = call.aws.client("s3").put_object(
            Bucket=given["bucket"],
            Key=given["key"],
            Body=_content(given),
            Tagging=urlencode({tag["Key"]: tag["Value"] for tag in tag_list(given.get("tags"))}),
            **call.only(contentType="ContentType"),
        )
        return f"{given['bucket']}/{given['key']}", {"etag": answer["ETag"].strip('"')}

    def anew(self, changed: Collection[str]) -> frozenset[str]:
        return frozenset() if set(changed) <= {"tags"} else frozenset({"etag"})

    def update(self, call: Call) -> dict[str, Any]:
        if call.changed(*(self.keys.keys() - {"tags"})):
            return self.create(call)[1]
        where = {"Bucket": call.inputs["bucket"], "Key": call.inputs["key"]}
        call.aws.client("s3").put_object_tagging(**where, Tagging={"TagSet": call.tags})
        return {}

    def delete(self, call: Call) -> None:
        try:
            call.aws.client("s3").delete_object(Bucket=call.inputs["bucket"], Key=call.inputs["key"])
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchBucket":
                raise


def _content(given: Mapping[str, Any]) -> bytes:
    """Of `content`, or of the asset `source`: a file's path or a text."""
    if "source" not in given:
        return str(given["content"]).encode()
    text = getattr(given["source"], "text", None)
    return Path(given["source"].path).read_bytes() if text is None else str(text).encode()


HANDLERS = (Bucket(), Versioning(), Encryption(), PublicAccessBlock(), Policy(), Lifecycle(), Object())
