"""Amazon S3: objects of a bucket, and buckets by their tags."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import ClientError

from trainyard.aws.clients import client

_MISSING_CODES = {"NoSuchKey", "404", "NotFound"}


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing. `modified`: time of the last write, Unix time in seconds."""

    key: str
    storage_class: str
    modified: float


def find_buckets(region: str, tags: Mapping[str, str]) -> list[str]:
    """Return the names of the existing buckets that have all these tags.

    AWS's tag index lags behind: a new bucket may be missing for a minute. Deleted buckets are filtered out.
    """
    response = client("resourcegroupstaggingapi", region).get_resources(
        TagFilters=[{"Key": key, "Values": [value]} for key, value in tags.items()], ResourceTypeFilters=["s3"]
    )
    names = [item["ResourceARN"].rsplit(":", 1)[-1] for item in response["ResourceTagMappingList"]]
    return [name for name in names if Bucket(name, region).exists()]


class Bucket:
    """Objects of one bucket."""

    def __init__(self, name: str, region: str) -> None:
        self.name = name
        self._s3 = client("s3", region)

    def exists(self) -> bool:
        """Return whether the bucket exists."""
        try:
            self._s3.head_bucket(Bucket=self.name)
        except ClientError as error:
            if error.response["Error"]["Code"] in {*_MISSING_CODES, "NoSuchBucket"}:
                return False
            raise
        return True

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below a prefix, in order. `prefix` ends with a slash."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, Delimiter="/")
        for page in pages:
            for item in page.get("CommonPrefixes", []):
                yield item["Prefix"].removeprefix(prefix).rstrip("/")

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix, in order."""
        for stored in self.objects(prefix):
            yield stored.key

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a prefix, in the order of their keys."""
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
            for item in page.get("Contents", []):
                yield StoredObject(item["Key"], item.get("StorageClass", "STANDARD"), item["LastModified"].timestamp())

    def restore_status(self, key: str) -> str:
        """Return the x-amz-restore header of an archived object; empty when no restore was requested."""
        return str(self._s3.head_object(Bucket=self.name, Key=key).get("Restore", ""))

    def add_tag(self, key: str, name: str, value: str) -> bool:
        """Add a tag to an object and keep its other tags; return False when it already has this tag."""
        tags = self._s3.get_object_tagging(Bucket=self.name, Key=key)["TagSet"]
        new = {"Key": name, "Value": value}
        if new in tags:
            return False
        others = [tag for tag in tags if tag["Key"] != name]
        self._s3.put_object_tagging(Bucket=self.name, Key=key, Tagging={"TagSet": [*others, new]})
        return True

    def read(self, key: str) -> bytes:
        """Return the content of an object. Raises ClientError when it does not exist."""
        content: bytes = self._s3.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def find(self, key: str) -> bytes | None:
        """Return the content of an object, or None when it does not exist."""
        try:
            return self.read(key)
        except ClientError as error:
            if error.response["Error"]["Code"] in _MISSING_CODES:
                return None
            raise

    def write(self, key: str, content: bytes) -> None:
        """Create or replace an object."""
        # The Pulumi program reads JSON objects by a lookup that returns the content of text types only.
        content_type = "application/json" if key.endswith(".json") else "application/octet-stream"
        self._s3.put_object(Bucket=self.name, Key=key, Body=content, ContentType=content_type)

    def download(self, key: str, file: Path) -> None:
        """Download an object to a file and create the file's folder."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._s3.download_file(self.name, key, str(file))
