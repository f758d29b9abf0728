"""S3 Object Lock, where moto 5.2.5 differs from AWS's documentation.

- Object Lock can be enabled for an existing bucket with objects, if it is versioned. Then neither Object Lock can be
  disabled nor versioning be suspended:
  https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-lock-configure.html
- A retention can be extended. To shorten or remove one in governance mode, a request needs the header
  x-amz-bypass-governance-retention and the permission s3:BypassGovernanceRetention; nobody can in compliance mode:
  https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-lock.html
- The deletion of a locked version is refused with 403 (moto: 400). Lifecycle rules delete no locked version, and
  buckets with Object Lock are no destinations of access logs:
  https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-lock-managing.html

Retention periods end by the account's clock. A default retention of a bucket is not emulated.
"""

from datetime import UTC, datetime
from typing import Any

from moto.s3.exceptions import AccessDeniedByLock, InvalidBucketState, S3ClientError
from moto.s3.models import FakeKey, S3Backend
from moto.s3.responses import S3Response

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.moto_extension import extend


def install() -> None:
    """Replace the functions of moto that differ."""
    extend(S3Backend, put_object_lock_configuration, put_bucket_versioning)
    extend(S3Response, put_object_retention)
    extend(FakeKey, is_locked)
    extend(AccessDeniedByLock, code=403)


def is_locked(self: Any, governance_bypass: bool) -> bool:
    """Return whether the version cannot be deleted now."""
    if self.lock_legal_status == "ON":
        return True
    if not self.lock_mode or (self.lock_mode == "GOVERNANCE" and governance_bypass):
        return False
    return bool(retain_until(self.lock_until) > CLOCK.now())


def retain_until(date: str) -> float:
    """Return the Unix time of a retain-until date, seconds."""
    return datetime.fromisoformat(date).astimezone(UTC).timestamp()


def put_object_lock_configuration(
    self: Any, bucket_name: str, lock_enabled: bool, mode: str | None = None, days: int | None = None, years: Any = None
) -> None:
    """Enable Object Lock for a versioned bucket."""
    if mode or days or years:
        raise NotImplementedError("a default retention of a bucket")
    bucket = self.get_bucket(bucket_name)
    if not lock_enabled:
        raise S3ClientError("MalformedXML", "ObjectLockEnabled must be Enabled.")
    if bucket.versioning_status != "Enabled":
        raise InvalidBucketState("Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration")
    bucket.object_lock_enabled = True


_moto_put_versioning = S3Backend.put_bucket_versioning


def put_bucket_versioning(self: Any, bucket_name: str, status: str) -> None:
    """Set the versioning of a bucket; a bucket with Object Lock refuses to suspend it."""
    if self.get_bucket(bucket_name).object_lock_enabled and status != "Enabled":
        raise InvalidBucketState(
            "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed."
        )
    _moto_put_versioning(self, bucket_name, status)


_moto_put_retention = S3Response.put_object_retention


def put_object_retention(self: Any) -> Any:
    """Set or extend a retention; shorten or remove it only with the bypass of governance mode."""
    bucket = self.backend.get_bucket(self.bucket_name)
    version = self.backend.get_object(self.bucket_name, self.parse_key_name(), version_id=self._get_param("versionId"))
    if bucket.object_lock_enabled and version is not None:
        _validate(version, *self._mode_until_from_body(), bypass=_has_bypass(self.headers))
    return _moto_put_retention(self)


def _has_bypass(headers: Any) -> bool:
    return str(headers.get("x-amz-bypass-governance-retention", "")).lower() == "true"


def _validate(version: Any, mode: str | None, until: str | None, *, bypass: bool) -> None:
    if until is not None and retain_until(until) <= CLOCK.now():
        raise S3ClientError("InvalidArgument", "The retain until date must be in the future!")
    if not version.is_locked(governance_bypass=bypass):
        return
    if version.lock_mode == "GOVERNANCE" and mode == "COMPLIANCE":
        raise NotImplementedError("a change of a retention from governance to compliance mode")
    if mode != version.lock_mode or until is None or retain_until(until) < retain_until(version.lock_until):
        raise AccessDeniedByLock
