"""Objects under a customer's KMS key: S3 neither reads nor writes them while the key can't be used.

Nor for a role that may not use the key: S3 asks KMS in the caller's name.
"""

from collections.abc import Sequence
from typing import Any

from moto.s3.exceptions import S3ClientError
from moto.s3.models import S3Backend
from moto.s3.responses import S3Response

from rehearsal.aws.extension import extend
from rehearsal.aws.iam.callers import CALLER
from rehearsal.aws.storage.key_policies import key_ask
from rehearsal.aws.storage.keys import find_key

_READ = ("kms:Decrypt",)
_WRITE = ("kms:GenerateDataKey",)
_UPLOAD = ("kms:GenerateDataKey", "kms:Decrypt")  # S3 reads the parts to make them one


def check_key(account: str, region: str, algorithm: str | None, key: str | None, uses: Sequence[str]) -> None:
    """Raises S3's refusal when what is encrypted so can't be read or written. `key`: id, alias or ARN of either.

    `uses`: the actions of KMS that the caller must be allowed.
    """
    if not (algorithm or "").startswith("aws:kms") or not key or key.endswith("alias/aws/s3"):
        return
    found = find_key(account, region, key)
    if found is None:
        raise S3ClientError("KMS.NotFoundException", f"Key '{key}' does not exist")
    if found.key_state == "PendingDeletion":
        raise S3ClientError("KMS.KMSInvalidStateException", f"{found.arn} is pending deletion.")
    if found.key_state != "Enabled":
        raise S3ClientError("KMS.DisabledException", f"{found.arn} is disabled.")
    if caller := CALLER.get():
        for use in uses:
            caller.require(key_ask(use, found, "s3"))


def _check_write(
    backend: Any, bucket_name: str, algorithm: str | None, key: str | None, uses: Sequence[str] = _WRITE
) -> None:
    """The request's own encryption goes before the bucket's default."""
    bucket = backend.get_bucket(bucket_name)
    default = (bucket.encryption or {}).get("Rule", {}).get("ApplyServerSideEncryptionByDefault", {})
    if not algorithm:
        algorithm, key = default.get("SSEAlgorithm"), key or default.get("KMSMasterKeyID")
    check_key(bucket.account_id, bucket.region_name, algorithm, key or default.get("KMSMasterKeyID"), uses)


def _check_read(backend: Any, bucket_name: str, found: Any) -> None:
    if found is not None:
        bucket = backend.get_bucket(bucket_name)
        check_key(bucket.account_id, bucket.region_name, found.encryption, found.kms_key_id, _READ)


def install() -> None:
    put, start, part = S3Backend.put_object, S3Backend.create_multipart_upload, S3Backend.upload_part
    copy, copy_part = S3Backend.copy_object, S3Backend.upload_part_copy

    def put_object(self: Any, bucket_name: str, key_name: str, value: bytes, *args: Any, **given: Any) -> Any:
        _check_write(self, bucket_name, given.get("encryption"), given.get("kms_key_id"))
        return put(self, bucket_name, key_name, value, *args, **given)

    def create_multipart_upload(self: Any, bucket_name: str, *args: Any) -> Any:
        *_, algorithm, key = args
        _check_write(self, bucket_name, algorithm, key, _UPLOAD)
        return start(self, bucket_name, *args)

    def check_part(backend: Any, bucket_name: str, upload: str) -> None:
        multipart = backend.get_bucket(bucket_name).multiparts.get(upload)
        if multipart:
            _check_write(backend, bucket_name, multipart.sse_encryption, multipart.kms_key_id, _UPLOAD)

    def upload_part(self: Any, bucket_name: str, multipart_id: str, *args: Any, **given: Any) -> Any:
        check_part(self, bucket_name, multipart_id)
        return part(self, bucket_name, multipart_id, *args, **given)

    def upload_part_copy(
        self: Any, dest: str, upload: str, number: int, source: str, key: str, version: str | None, *span: int
    ) -> Any:
        check_part(self, dest, upload)
        _check_read(self, source, self.get_object(source, key, version_id=version))
        return copy_part(self, dest, upload, number, source, key, version, *span)

    def copy_object(self: Any, src_key: Any, dest_bucket_name: str, *args: Any, **given: Any) -> None:
        _check_read(self, src_key.bucket_name, src_key)
        _check_write(self, dest_bucket_name, given.get("encryption"), given.get("kms_key_id"))
        copy(self, src_key, dest_bucket_name, *args, **given)

    extend(S3Backend, put_object, create_multipart_upload, upload_part, upload_part_copy, copy_object)
    _install_reads()


def _install_reads() -> None:
    """HeadObject tells of an object without decrypting it; these two decrypt."""
    get, attributes = S3Response.get_object, S3Response.get_object_attributes

    def check(response: Any) -> None:
        version = response.querystring.get("versionId", [None])[0]
        found = response.backend.get_object(response.bucket_name, response.parse_key_name(), version_id=version)
        _check_read(response.backend, response.bucket_name, found)

    def get_object(self: Any) -> Any:
        check(self)
        return get(self)

    def get_object_attributes(self: Any) -> Any:
        check(self)
        return attributes(self)

    extend(S3Response, get_object, get_object_attributes)
