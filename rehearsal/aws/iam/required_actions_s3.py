"""What rights an S3 request needs.

Source of the tables: https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html. What KMS
is asked for on the way (encryption.py) and each key of a DeleteObjects (bucket_policies.py) come later, one by one.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from moto.s3.models import s3_backends

from rehearsal.aws.iam.policies import Ask
from rehearsal.aws.lookup import bucket_of
from rehearsal.aws.operations import Call

_ON_OBJECT = {
    "AbortMultipartUpload": "AbortMultipartUpload",
    "CompleteMultipartUpload": "PutObject",
    "CopyObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "DeleteObject": "DeleteObject",
    "DeleteObjectTagging": "DeleteObjectTagging",
    "GetObject": "GetObject",
    "GetObjectTagging": "GetObjectTagging",
    "HeadObject": "GetObject",
    "ListParts": "ListMultipartUploadParts",
    "PutObject": "PutObject",
    "PutObjectTagging": "PutObjectTagging",
    "UploadPart": "PutObject",
    "UploadPartCopy": "PutObject",
}
_ON_BUCKET = {
    "CreateBucket": "CreateBucket",
    "DeleteBucket": "DeleteBucket",
    "DeleteBucketPolicy": "DeleteBucketPolicy",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "GetBucketLocation": "GetBucketLocation",
    "GetBucketPolicy": "GetBucketPolicy",
    "GetBucketTagging": "GetBucketTagging",
    "GetBucketVersioning": "GetBucketVersioning",
    "HeadBucket": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectVersions": "ListBucketVersions",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutBucketPolicy": "PutBucketPolicy",
    "PutBucketTagging": "PutBucketTagging",
    "PutBucketVersioning": "PutBucketVersioning",
}
_OF_VERSIONS = {"GetObject", "DeleteObject", "GetObjectTagging", "PutObjectTagging", "DeleteObjectTagging"}
_TELLING = {"GetObject", "HeadObject"}  # 404 is an answer too, for those who may list
# Headers of a write that ask for a right beside.
_BESIDE = {
    "HTTP_X_AMZ_TAGGING": "PutObjectTagging",
    "HTTP_X_AMZ_ACL": "PutObjectAcl",
    "HTTP_X_AMZ_OBJECT_LOCK_MODE": "PutObjectRetention",
    "HTTP_X_AMZ_OBJECT_LOCK_LEGAL_HOLD": "PutObjectLegalHold",
}


def s3_needs(call: Call, environ: dict[str, Any], body: bytes) -> Iterator[Ask]:
    """Raises NotImplementedError for an operation whose rights are not known here."""
    if environ.get("HTTP_HOST", "").partition(":")[0] not in {"127.0.0.1", "localhost"}:
        raise NotImplementedError(f"S3's address style of {environ.get('HTTP_HOST')}")
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
    bucket, _, key = path.removeprefix("/").partition("/")
    arn, operation = f"arn:aws:s3:::{bucket}", call.operation
    if operation == "ListBuckets":
        yield Ask("s3:ListAllMyBuckets", "*")
    elif operation == "DeleteObjects":
        if b"<VersionId>" in body:
            raise NotImplementedError("rights to delete many versions")
    elif operation in _ON_BUCKET:
        yield Ask(f"s3:{_ON_BUCKET[operation]}", arn, _listing(query))
    elif operation in _ON_OBJECT:
        version = query.get("versionId", [None])[0]
        yield Ask(f"s3:{_of(_ON_OBJECT[operation], version)}", f"{arn}/{key}")
        if operation in _TELLING and not version and not _there(bucket, key):
            yield Ask("s3:ListBucket", arn, _listing({}))
        if operation in {"PutObject", "CreateMultipartUpload", "CopyObject"}:
            asked = (action for header, action in _BESIDE.items() if header in environ)
            yield from (Ask(f"s3:{action}", f"{arn}/{key}") for action in asked)
        if operation in {"CopyObject", "UploadPartCopy"}:
            yield from _source(environ, operation, f"{arn}/{key}")
    else:
        raise NotImplementedError(f"the rights that s3:{operation} needs")


def _of(action: str, version: str | None) -> str:
    return action.replace("Object", "ObjectVersion") if version and action in _OF_VERSIONS else action


def _listing(query: dict[str, list[str]]) -> dict[str, str | None]:
    return {f"s3:{name}": query.get(name, [None])[0] for name in ("prefix", "delimiter")}


def _source(environ: dict[str, Any], operation: str, target: str) -> Iterator[Ask]:
    """A copy reads its source; the tags of the source go along unless the request names others."""
    source = urlsplit(environ["HTTP_X_AMZ_COPY_SOURCE"])
    bucket, _, key = unquote(source.path).lstrip("/").partition("/")
    version = parse_qs(source.query).get("versionId", [None])[0]
    arn = f"arn:aws:s3:::{bucket}/{key}"
    yield Ask(f"s3:{_of('GetObject', version)}", arn)
    if not version and not _there(bucket, key):
        yield Ask("s3:ListBucket", f"arn:aws:s3:::{bucket}", _listing({}))
    elif (
        operation == "CopyObject" and environ.get("HTTP_X_AMZ_TAGGING_DIRECTIVE") != "REPLACE" and _tagged(bucket, key)
    ):
        yield Ask(f"s3:{_of('GetObjectTagging', version)}", arn)
        yield Ask("s3:PutObjectTagging", target)


def _there(bucket: str, key: str) -> bool:
    return getattr(bucket_of(bucket), "keys", {}).get(key) is not None


def _tagged(bucket: str, key: str) -> bool:
    found = bucket_of(bucket)
    tagger = s3_backends[found.account_id][found.partition].tagger
    return bool(tagger.get_tag_dict_for_resource(found.keys[key].arn))
