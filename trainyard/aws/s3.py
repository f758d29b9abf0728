"""The wire between the rooms: objects in S3, with retries that outlive a short outage."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

_PATIENT = Config(retries={"mode": "standard", "max_attempts": 8}, connect_timeout=5, read_timeout=60)
_ABSENT = {"NoSuchKey", "404", "NotFound"}


@dataclass(frozen=True)
class Stored:
    """An object as a listing tells it. `modified`: Unix time."""

    key: str
    storage_class: str
    modified: float


@cache
def client(service: str, region: str) -> Any:
    """One boto3 client a service: clients are thread-safe, making them is not cheap."""
    return boto3.client(service, region_name=region, config=_PATIENT)


class Bucket:
    """Objects of one bucket."""

    def __init__(self, name: str, region: str) -> None:
        self.name = name
        self._s3 = client("s3", region)

    def exists(self) -> bool:
        """Whether the bucket itself is there."""
        try:
            self._s3.head_bucket(Bucket=self.name)
        except ClientError as error:
            if error.response["Error"]["Code"] in {*_ABSENT, "NoSuchBucket"}:
                return False
            raise
        return True

    def folders(self, prefix: str) -> Iterator[str]:
        """Names right under a prefix that ends in a slash, as a folder's, in order."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, Delimiter="/")
        for page in pages:
            for item in page.get("CommonPrefixes", []):
                yield item["Prefix"].removeprefix(prefix).rstrip("/")

    def keys(self, prefix: str) -> Iterator[str]:
        for one in self.objects(prefix):
            yield one.key

    def objects(self, prefix: str) -> Iterator[Stored]:
        """What lies under a prefix, in order of keys."""
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
            for item in page.get("Contents", []):
                yield Stored(item["Key"], item.get("StorageClass", "STANDARD"), item["LastModified"].timestamp())

    def restore_of(self, key: str) -> str:
        """What S3 says of an archived object's way back: empty where nobody has asked for it."""
        return str(self._s3.head_object(Bucket=self.name, Key=key).get("Restore", ""))

    def add_tag(self, key: str, name: str, value: str) -> bool:
        """Tag an object and keep its other tags; False where it bears this one."""
        tags = self._s3.get_object_tagging(Bucket=self.name, Key=key)["TagSet"]
        others = [tag for tag in tags if tag["Key"] != name]
        wanted = [*others, {"Key": name, "Value": value}]
        if wanted[-1] in tags:
            return False
        self._s3.put_object_tagging(Bucket=self.name, Key=key, Tagging={"TagSet": wanted})
        return True

    def read(self, key: str) -> bytes:
        content: bytes = self._s3.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def find(self, key: str) -> bytes | None:
        """The object's content, or None where there is no such object."""
        try:
            return self.read(key)
        except ClientError as error:
            if error.response["Error"]["Code"] in _ABSENT:
                return None
            raise

    def write(self, key: str, content: bytes) -> None:
        self._s3.put_object(Bucket=self.name, Key=key, Body=content)

    def download(self, key: str, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._s3.download_file(self.name, key, str(file))
