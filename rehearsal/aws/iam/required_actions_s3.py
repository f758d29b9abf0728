"""The IAM actions that an S3 request requires.

Source of the tables: https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html. KMS
actions (encryption.py) and the keys of a DeleteObjects (bucket_policies.py) are authorized during the request.
"""

import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

from moto.s3.models import s3_backends

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.iam.policies import AccessRequest
from rehearsal.aws.lookup import find_bucket
from rehearsal.aws.operations import Call
from rehearsal.aws.storage.object_lock import retain_until

_OBJECT_ACTIONS = {
    "AbortMultipartUpload": "AbortMultipartUpload",
    "CompleteMultipartUpload": "PutObject",
    "CopyObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "DeleteObject": "DeleteObject",
    "DeleteObjectTagging": "DeleteObjectTagging",
    "GetObject": "GetObject",
    "GetObjectRetention": "GetObjectRetention",
    "GetObjectTagging": "GetObjectTagging",
    "HeadObject": "GetObject",
    "ListParts": "ListMultipartUploadParts",
    "PutObject": "PutObject",
    "PutObjectRetention": "PutObjectRetention",
    "PutObjectTagging": "PutObjectTagging",
    "UploadPart": "PutObject",
    "UploadPartCopy": "PutObject",
}
_BUCKET_ACTIONS = {
    "CreateBucket": "CreateBucket",
    "DeleteBucket": "DeleteBucket",
    "DeleteBucketEncryption": "PutEncryptionConfiguration",
    "DeleteBucketLifecycle": "PutLifecycleConfiguration",
    "DeleteBucketPolicy": "DeleteBucketPolicy",
    "DeletePublicAccessBlock": "PutBucketPublicAccessBlock",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "GetBucketLocation": "GetBucketLocation",
    "GetBucketLogging": "GetBucketLogging",
    "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
    "GetBucketPolicy": "GetBucketPolicy",
    "GetBucketTagging": "GetBucketTagging",
    "GetBucketVersioning": "GetBucketVersioning",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "HeadBucket": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectVersions": "ListBucketVersions",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutBucketLogging": "PutBucketLogging",
    "PutBucketPolicy": "PutBucketPolicy",
    "PutObjectLockConfiguration": "PutBucketObjectLockConfiguration",
    "PutBucketTagging": "PutBucketTagging",
    "PutBucketVersioning": "PutBucketVersioning",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
}
_VERSIONED_ACTIONS = {"GetObject", "DeleteObject", "GetObjectTagging", "PutObjectTagging", "DeleteObjectTagging"}
_REVEALING_OPERATIONS = {
    "GetObject",
    "HeadObject",
}  # a 404 reveals that a key does not exist, which requires ListBucket
# Headers of a write that require another action.
_HEADER_ACTIONS = {
    "HTTP_X_AMZ_TAGGING": "PutObjectTagging",
    "HTTP_X_AMZ_ACL": "PutObjectAcl",
    "HTTP_X_AMZ_OBJECT_LOCK_MODE": "PutObjectRetention",
    "HTTP_X_AMZ_OBJECT_LOCK_LEGAL_HOLD": "PutObjectLegalHold",
}


def s3_required_requests(call: Call, environ: dict[str, Any], body: bytes) -> Iterator[AccessRequest]:
    """Yield the access requests of an S3 request. Raises NotImplementedError for an unsupported operation."""
    if environ.get("HTTP_HOST", "").partition(":")[0] not in {"127.0.0.1", "localhost"}:
        raise NotImplementedError(f"the S3 endpoint style of {environ.get('HTTP_HOST')}")
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
    bucket, _, key = path.removeprefix("/").partition("/")
    arn, operation = f"arn:aws:s3:::{bucket}", call.operation
    if operation == "ListBuckets":
        yield AccessRequest("s3:ListAllMyBuckets", "*")
    elif operation == "DeleteObjects":
        yield from _deleted_versions(body, arn, _bypasses_lock(environ))
    elif operation in _BUCKET_ACTIONS:
        yield AccessRequest(f"s3:{_BUCKET_ACTIONS[operation]}", arn, _list_context(query))
    elif operation in _OBJECT_ACTIONS:
        version = query.get("versionId", [None])[0]
        context = _retention_context(body) if operation == "PutObjectRetention" else {}
        yield AccessRequest(f"s3:{_versioned_action(_OBJECT_ACTIONS[operation], version)}", f"{arn}/{key}", context)
        if _bypasses_lock(environ):
            yield AccessRequest("s3:BypassGovernanceRetention", f"{arn}/{key}")
        if operation in _REVEALING_OPERATIONS and not version and not _exists(bucket, key):
            yield AccessRequest("s3:ListBucket", arn, _list_context({}))
        if operation in {"PutObject", "CreateMultipartUpload", "CopyObject"}:
            actions = (action for header, action in _HEADER_ACTIONS.items() if header in environ)
            yield from (AccessRequest(f"s3:{action}", f"{arn}/{key}") for action in actions)
        if operation in {"CopyObject", "UploadPartCopy"}:
            yield from _source_requests(environ, operation, f"{arn}/{key}")
    else:
        raise NotImplementedError(f"the authorization of s3:{operation}")


def _bypasses_lock(environ: dict[str, Any]) -> bool:
    return str(environ.get("HTTP_X_AMZ_BYPASS_GOVERNANCE_RETENTION", "")).lower() == "true"


def _deleted_versions(body: bytes, arn: str, bypasses_lock: bool) -> Iterator[AccessRequest]:
    """Yield the requests for versions. S3 reports a denial per key; the emulated account denies the whole request."""
    for entry in ElementTree.fromstring(body).iter():  # noqa: S314 (a request of this machine)
        if entry.tag.endswith("Object"):
            values = {child.tag.rpartition("}")[2]: child.text for child in entry}
            if "VersionId" in values:
                yield AccessRequest("s3:DeleteObjectVersion", f"{arn}/{values['Key']}")
                if bypasses_lock:
                    yield AccessRequest("s3:BypassGovernanceRetention", f"{arn}/{values['Key']}")


def s3_action(operation: str) -> str:
    """Return the main IAM action of an operation of S3. Raises KeyError for an unsupported operation."""
    if operation == "DeleteObjects":
        return "s3:DeleteObject"
    return f"s3:{_BUCKET_ACTIONS.get(operation) or _OBJECT_ACTIONS[operation]}"


def _versioned_action(action: str, version: str | None) -> str:
    return action.replace("Object", "ObjectVersion") if version and action in _VERSIONED_ACTIONS else action


def _list_context(query: dict[str, list[str]]) -> dict[str, str | None]:
    return {f"s3:{name}": query.get(name, [None])[0] for name in ("prefix", "delimiter")}


def _retention_context(body: bytes) -> dict[str, str | None]:
    """Return the condition keys of a retention. A part of a day counts as a day, which AWS does not document."""
    mode, until = (re.search(rb"<%s>([^<]*)<" % name, body) for name in (b"Mode", b"RetainUntilDate"))
    days = math.ceil((retain_until(until[1].decode()) - CLOCK.now()) / 86400) if until else None
    return {
        "s3:object-lock-mode": mode[1].decode() if mode else None,
        "s3:object-lock-remaining-retention-days": None if days is None else str(days),
    }


def _source_requests(environ: dict[str, Any], operation: str, target: str) -> Iterator[AccessRequest]:
    """Yield the requests for a copy's source, and for its tags, which are copied unless the request replaces them."""
    source = urlsplit(environ["HTTP_X_AMZ_COPY_SOURCE"])
    bucket, _, key = unquote(source.path).lstrip("/").partition("/")
    version = parse_qs(source.query).get("versionId", [None])[0]
    arn = f"arn:aws:s3:::{bucket}/{key}"
    yield AccessRequest(f"s3:{_versioned_action('GetObject', version)}", arn)
    if not version and not _exists(bucket, key):
        yield AccessRequest("s3:ListBucket", f"arn:aws:s3:::{bucket}", _list_context({}))
    elif (
        operation == "CopyObject"
        and environ.get("HTTP_X_AMZ_TAGGING_DIRECTIVE") != "REPLACE"
        and _has_tags(bucket, key)
    ):
        yield AccessRequest(f"s3:{_versioned_action('GetObjectTagging', version)}", arn)
        yield AccessRequest("s3:PutObjectTagging", target)


def _exists(bucket: str, key: str) -> bool:
    return getattr(find_bucket(bucket), "keys", {}).get(key) is not None


def _has_tags(bucket: str, key: str) -> bool:
    owner = find_bucket(bucket)
    tagger = s3_backends[owner.account_id][owner.partition].tagger
    return bool(tagger.get_tag_dict_for_resource(owner.keys[key].arn))
