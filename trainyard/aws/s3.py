"""Amazon S3: objects of a bucket, and buckets by their tags."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager
from botocore.exceptions import ClientError

from trainyard.aws.clients import client

ABORT_UPLOADS_DAYS = 7  # after which lifecycle rules abort incomplete multipart uploads, which are billed
# The second code: another request writes the object at the same time (API reference, PutObject).
_CONFLICT_CODES = {"PreconditionFailed", "ConditionalRequestConflict"}
_MISSING_CODES = {"NoSuchKey", "404", "NotFound"}
# Storage classes whose objects GetObject refuses (InvalidObjectState) until they are restored. Source:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/archived-objects.html
ARCHIVE_CLASSES = frozenset(["GLACIER", "DEEP_ARCHIVE"])


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing. `modified`: time of the last write, Unix time in seconds; `size`: bytes."""

    key: str
    storage_class: str
    modified: float
    size: int

    @property
    def archived(self) -> bool:
        """Whether the object is in an archive class, from which it is read only after a restore."""
        return self.storage_class in ARCHIVE_CLASSES


def find_buckets(region: str, tags: Mapping[str, str]) -> list[str]:
    """Return the names of the existing buckets that have all these tags.

    AWS's tag index lags behind: a new bucket may be missing for a minute. Deleted buckets are filtered out.
    """
    response = client("resourcegroupstaggingapi", region).get_resources(
        TagFilters=[{"Key": key, "Values": [value]} for key, value in tags.items()], ResourceTypeFilters=["s3"]
    )
    names = [item["ResourceARN"].rsplit(":", 1)[-1] for item in response["ResourceTagMappingList"]]
    return [name for name in names if Bucket(name, region).exists()]


class ObjectChangedError(Exception):
    """Another program has changed an object since this program read or wrote it."""


class Bucket:
    """Objects of one bucket.

    `owner`: account that must own it, or S3 denies each request; None: any account. Source:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucket-owner-condition.html
    """

    def __init__(self, name: str, region: str, owner: str | None = None) -> None:
        self.name = name
        self._owner = {"ExpectedBucketOwner": owner} if owner else {}
        self._s3 = client("s3", region)

    @property
    def _bucket(self) -> dict[str, str]:
        """Parameters of a request that name the bucket."""
        return {"Bucket": self.name, **self._owner}

    def exists(self) -> bool:
        """Return whether the bucket exists."""
        try:
            self._s3.head_bucket(**self._bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] in {*_MISSING_CODES, "NoSuchBucket"}:
                return False
            raise
        return True

    def region(self) -> str:
        """Return the region of the bucket."""
        return str(self._s3.head_bucket(**self._bucket)["BucketRegion"])

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below a prefix, in order. `prefix` ends with a slash."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(**self._bucket, Prefix=prefix, Delimiter="/")
        for page in pages:
            for item in page.get("CommonPrefixes", []):
                yield item["Prefix"].removeprefix(prefix).rstrip("/")

    def keys(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys below a prefix, in order; those after the key `after`."""
        for stored in self.objects(prefix, after):
            yield stored.key

    def objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a prefix, in the order of their keys; those after the key `after`."""
        limits = {"StartAfter": after} if after else {}
        for page in self._s3.get_paginator("list_objects_v2").paginate(**self._bucket, Prefix=prefix, **limits):
            for item in page.get("Contents", []):
                storage_class, modified = item.get("StorageClass", "STANDARD"), item["LastModified"].timestamp()
                yield StoredObject(item["Key"], storage_class, modified, item["Size"])

    def restore_status(self, key: str) -> str:
        """Return the x-amz-restore header of an archived object; empty when no restore was requested."""
        return str(self._s3.head_object(**self._bucket, Key=key).get("Restore", ""))

    def days_until_archived(self, tag: str, value: str) -> int | None:
        """Return the age, days, at which a lifecycle rule moves objects with this tag to Deep Archive; None: no rule.

        None also where the caller may not read the bucket's lifecycle rules.
        """
        try:
            rules = self._s3.get_bucket_lifecycle_configuration(**self._bucket)["Rules"]
        except ClientError as error:
            if error.response["Error"]["Code"] in {"NoSuchLifecycleConfiguration", "AccessDenied"}:
                return None
            raise
        days = [
            transition["Days"]
            for rule in rules
            if rule["Status"] == "Enabled" and {"Key": tag, "Value": value} in _filter_tags(rule.get("Filter", {}))
            for transition in rule.get("Transitions", [])
            if transition["StorageClass"] == "DEEP_ARCHIVE" and "Days" in transition
        ]
        return min(days, default=None)

    def set_tag(self, key: str, name: str, value: str) -> bool:
        """Set a tag of an object and keep its other tags; return False when it already has this tag."""
        tags = self._s3.get_object_tagging(**self._bucket, Key=key)["TagSet"]
        new = {"Key": name, "Value": value}
        if new in tags:
            return False
        others = [tag for tag in tags if tag["Key"] != name]
        self._s3.put_object_tagging(**self._bucket, Key=key, Tagging={"TagSet": [*others, new]})
        return True

    def lock(self, key: str, until: float) -> None:
        """Lock the current version of an object until a Unix time, seconds, with Object Lock in governance mode.

        A lock can be extended, and not shortened. Source: Amazon S3 user guide, "Locking objects with Object Lock".
        """
        retention: Any = {"Mode": "GOVERNANCE", "RetainUntilDate": datetime.fromtimestamp(until, UTC)}
        self._s3.put_object_retention(**self._bucket, Key=key, Retention=retention)

    def read(self, key: str) -> bytes:
        """Return the content of an object. Raises ClientError when it does not exist."""
        content: bytes = self._s3.get_object(**self._bucket, Key=key)["Body"].read()
        return content

    def find(self, key: str) -> bytes | None:
        """Return the content of an object, or None when it does not exist."""
        return self.find_version(key)[0]

    def metadata(self, key: str) -> dict[str, str]:
        """Return the user-defined metadata of an object."""
        metadata: dict[str, str] = self._s3.head_object(**self._bucket, Key=key)["Metadata"]
        return metadata

    def write(self, key: str, content: bytes, metadata: Mapping[str, str] = MappingProxyType({})) -> None:
        """Create or replace an object, with user-defined metadata (x-amz-meta-*)."""
        self._put(key, content, Metadata=dict(metadata))

    def create(self, key: str, content: bytes) -> bool:
        """Create an object; return False, and change nothing, when it exists."""
        try:
            self.replace(key, content, None)
        except ObjectChangedError:
            return False
        return True

    def find_version(self, key: str) -> tuple[bytes | None, str | None]:
        """Return the content of an object and its ETag; None for both when it does not exist."""
        try:
            response = self._s3.get_object(**self._bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] in _MISSING_CODES:
                return None, None
            raise
        return response["Body"].read(), response["ETag"]

    def replace(self, key: str, content: bytes, etag: str | None) -> str:
        """Replace the version of an object with this ETag, or create it for None; return the new ETag.

        Raises ObjectChangedError if the object has another version. Source: Amazon S3 user guide, "How to prevent
        object overwrites with conditional writes".
        """
        try:
            return self._put(key, content, **({"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}))
        except ClientError as error:
            if error.response["Error"]["Code"] in {*_CONFLICT_CODES, *_MISSING_CODES}:
                raise ObjectChangedError(f"s3://{self.name}/{key} was changed by another program") from error
            raise

    def _put(self, key: str, content: bytes, **options: Any) -> str:
        # The Pulumi program reads JSON objects by a lookup that returns the content of text types only.
        content_type = "application/json" if key.endswith(".json") else "application/octet-stream"
        response = self._s3.put_object(**self._bucket, Key=key, Body=content, ContentType=content_type, **options)
        return str(response["ETag"])

    def upload(self, key: str, file: Path) -> None:
        """Create or replace an object from a file of any size."""
        self._s3.upload_file(str(file), self.name, key, ExtraArgs=self._owner)

    def delete(self, key: str) -> None:
        """Delete an object; a versioned bucket keeps its content."""
        self._s3.delete_object(**self._bucket, Key=key)

    def download(self, key: str, file: Path) -> None:
        """Download an object to a file and create the file's folder."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._s3.download_file(self.name, key, str(file), ExtraArgs=self._owner)

    def download_all(self, files: Mapping[StoredObject, Path], on_bytes: Callable[[int], None]) -> None:
        """Download objects to files in parallel, and create the files' folders.

        A file appears when it is complete, with the object's time of the last write. `on_bytes` is called by threads
        with the number of bytes that arrived.
        """
        config = TransferConfig(preferred_transfer_client="classic")  # an interrupt cancels its transfers
        with create_transfer_manager(self._s3, config) as manager:
            transfers = []
            for stored, file in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                subscribers = [_Download(file, stored.modified, on_bytes)]
                transfers.append(manager.download(self.name, stored.key, str(file), self._owner, subscribers))
            for transfer in transfers:
                transfer.result()


class _Download(ProgressCallbackInvoker):  # type: ignore[misc]
    """Sets the time of a file when its download has succeeded."""

    def __init__(self, file: Path, modified: float, on_bytes: Callable[[int], None]) -> None:
        super().__init__(on_bytes)
        self._file, self._modified = file, modified

    def on_done(self, future: Any, **_: Any) -> None:
        """Called when the transfer has ended, also if it failed or was cancelled."""
        with suppress(Exception):  # the main thread raises it
            future.result()
            os.utime(self._file, (self._modified, self._modified))


def _filter_tags(rule_filter: dict[str, Any]) -> list[dict[str, str]]:
    """Return the tags that the filter of a lifecycle rule requires."""
    return [rule_filter["Tag"]] if "Tag" in rule_filter else list(rule_filter.get("And", {}).get("Tags", []))
