"""Objects under a customer managed KMS key: S3 reads and writes them only if the caller can use the key."""

from collections.abc import Sequence
from typing import Any

from moto.s3.exceptions import S3ClientError
from moto.s3.models import S3Backend
from moto.s3.responses import S3Response

from rehearsal.aws.iam.callers import CALLER
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.storage.key_policies import key_request
from rehearsal.aws.storage.keys import find_key

_READ = ("kms:Decrypt",)
_WRITE = ("kms:GenerateDataKey",)
_UPLOAD = ("kms:GenerateDataKey", "kms:Decrypt")  # S3 reads the parts to combine them


def check_key(account: str, region: str, algorithm: str | None, key: str | None, actions: Sequence[str]) -> None:
    """Raise S3's error unless the caller can use the key for all `actions` of KMS.

    `algorithm`: server-side encryption of the object; other than aws:kms* it needs no key. `key`: id, alias or ARN.
    """
    if not (algorithm or "").startswith("aws:kms") or not key or key.endswith("alias/aws/s3"):
        return
    kms_key = find_key(account, region, key)
    if kms_key is None:
        raise S3ClientError("KMS.NotFoundException", f"Key '{key}' does not exist")
    if kms_key.key_state == "PendingDeletion":
        raise S3ClientError("KMS.KMSInvalidStateException", f"{kms_key.arn} is pending deletion.")
    if kms_key.key_state != "Enabled":
        raise S3ClientError("KMS.DisabledException", f"{kms_key.arn} is disabled.")
    if caller := CALLER.get():
        for action in actions:
            caller.require(key_request(action, kms_key, "s3"))


def _check_write(
    backend: Any, bucket_name: str, algorithm: str | None, key: str | None, actions: Sequence[str] = _WRITE
) -> None:
    """Check the key of a write. The request's encryption takes precedence over the bucket's default."""
    bucket = backend.get_bucket(bucket_name)
    default = (bucket.encryption or {}).get("Rule", {}).get("ApplyServerSideEncryptionByDefault", {})
    if not algorithm:
        algorithm, key = default.get("SSEAlgorithm"), key or default.get("KMSMasterKeyID")
    check_key(bucket.account_id, bucket.region_name, algorithm, key or default.get("KMSMasterKeyID"), actions)


def _check_read(backend: Any, bucket_name: str, version: Any) -> None:
    if version is not None:
        bucket = backend.get_bucket(bucket_name)
        check_key(bucket.account_id, bucket.region_name, version.encryption, version.kms_key_id, _READ)


def install() -> None:
    """Add the key checks to S3's reads and writes."""
    moto_put, moto_start_upload, moto_upload_part = (
        S3Backend.put_object,
        S3Backend.create_multipart_upload,
        S3Backend.upload_part,
    )
    moto_copy, moto_copy_part = S3Backend.copy_object, S3Backend.upload_part_copy

    def put_object(self: Any, bucket_name: str, key_name: str, value: bytes, *args: Any, **kwargs: Any) -> Any:
        _check_write(self, bucket_name, kwargs.get("encryption"), kwargs.get("kms_key_id"))
        return moto_put(self, bucket_name, key_name, value, *args, **kwargs)

    def create_multipart_upload(self: Any, bucket_name: str, *args: Any) -> Any:
        *_, algorithm, key = args
        _check_write(self, bucket_name, algorithm, key, _UPLOAD)
        return moto_start_upload(self, bucket_name, *args)

    def check_part(backend: Any, bucket_name: str, upload_id: str) -> None:
        multipart = backend.get_bucket(bucket_name).multiparts.get(upload_id)
        if multipart:
            _check_write(backend, bucket_name, multipart.sse_encryption, multipart.kms_key_id, _UPLOAD)

    def upload_part(self: Any, bucket_name: str, multipart_id: str, *args: Any, **kwargs: Any) -> Any:
        check_part(self, bucket_name, multipart_id)
        return moto_upload_part(self, bucket_name, multipart_id, *args, **kwargs)

    def upload_part_copy(
        self: Any, dest: str, upload: str, number: int, source: str, key: str, version: str | None, *span: int
    ) -> Any:
        check_part(self, dest, upload)
        _check_read(self, source, self.get_object(source, key, version_id=version))
        return moto_copy_part(self, dest, upload, number, source, key, version, *span)

    def copy_object(self: Any, src_key: Any, dest_bucket_name: str, *args: Any, **kwargs: Any) -> None:
        _check_read(self, src_key.bucket_name, src_key)
        _check_write(self, dest_bucket_name, kwargs.get("encryption"), kwargs.get("kms_key_id"))
        moto_copy(self, src_key, dest_bucket_name, *args, **kwargs)

    extend(S3Backend, put_object, create_multipart_upload, upload_part, upload_part_copy, copy_object)
    _install_reads()


def _install_reads() -> None:
    """Check reads that decrypt. HeadObject does not decrypt."""
    moto_get, moto_get_attributes = S3Response.get_object, S3Response.get_object_attributes

    def check(response: Any) -> None:
        version_id = response.querystring.get("versionId", [None])[0]
        version = response.backend.get_object(response.bucket_name, response.parse_key_name(), version_id=version_id)
        _check_read(response.backend, response.bucket_name, version)

    def get_object(self: Any) -> Any:
        check(self)
        return moto_get(self)

    def get_object_attributes(self: Any) -> Any:
        check(self)
        return moto_get_attributes(self)

    extend(S3Response, get_object, get_object_attributes)
