"""Object storage with one interface for a local folder and a prefix in S3."""

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainyard.aws.region import configured_region
from trainyard.errors import InputError, Problem
from trainyard.models.layout import split_s3_uri

_DELETE_BATCH_SIZE = 1000  # limit of S3's DeleteObjects
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # a URI with a missing slash, which is not a folder name


def open_storage(uri: str, name: str) -> "Storage":
    """Return the storage at `uri`; `name` is the variable with the URI, for error messages."""
    return S3Storage(uri, name) if "://" in uri else LocalStorage(uri, name)


class Storage(ABC):
    """Objects by key relative to `uri`, which ends in a slash. A failed operation raises OSError."""

    def __init__(self, uri: str, name: str) -> None:
        self.uri = uri.rstrip("/") + "/"
        self.name = name

    @abstractmethod
    def require(self, *, create: bool = False) -> None:
        """Raise InputError unless the folder or bucket exists. `create`: create a missing folder, never a bucket."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return the object's content; None if it does not exist."""

    @abstractmethod
    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the object's bytes from `start` to `stop`. Raises OSError if it is shorter."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether the object exists."""

    @abstractmethod
    def write(self, key: str, content: bytes) -> None:
        """Create or replace the object."""

    @abstractmethod
    def download(self, key: str, target: Path) -> None:
        """Copy the object to a file."""

    @abstractmethod
    def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
        """Copy a file to the object.

        `threads`: upload parts of a large file in parallel; the process cannot exit before these threads do.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the object if it exists."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the names of the folders directly under `uri`, sorted."""

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each object below a folder, by key relative to it; "" is `uri`."""

    @abstractmethod
    def delete_folder(self, folder: str) -> None:
        """Delete all objects below a folder."""

    def _problem(self, reason: str, fix: str, code: str) -> InputError:
        return InputError([Problem(self.name, self.uri, reason, fix, code)])


def _require_length(content: bytes, length: int, name: str) -> bytes:
    if len(content) != length:
        raise OSError(f"{name} is incomplete: it ends {length - len(content)} bytes too early")
    return content


class S3Error(OSError):
    """S3 has returned an error response; `code` is its error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class LocalStorage(Storage):
    """Objects as files below a local folder."""

    @property
    def _root(self) -> Path:
        return Path(self.uri)

    def require(self, *, create: bool = False) -> None:
        """Raise InputError unless the folder exists. `create`: create a missing folder."""
        if _SCHEME.match(self.uri):
            raise self._problem("is not a folder or s3://bucket/prefix/", "Correct the URI", "invalid_uri")
        if not create and not self._root.is_dir():
            raise self._problem("the folder does not exist", "Set it to an existing folder", "folder_missing")
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._problem(
                f"cannot be created: {error.strerror}", "Set it to a writable folder", "folder_not_writable"
            ) from None

    def read(self, key: str) -> bytes | None:
        """Return the file's content; None if it does not exist."""
        path = self._root / key
        return path.read_bytes() if path.is_file() else None

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the file's bytes from `start` to `stop`."""
        with (self._root / key).open("rb") as file:
            file.seek(start)
            return _require_length(file.read(stop - start), stop - start, self.uri + key)

    def exists(self, key: str) -> bool:
        """Whether the file exists."""
        return (self._root / key).is_file()

    def write(self, key: str, content: bytes) -> None:
        """Create or replace the file atomically."""
        with _atomic_replace(self._root / key) as partial:
            partial.write_bytes(content)

    def download(self, key: str, target: Path) -> None:
        """Copy the file to `target`."""
        shutil.copyfile(self._root / key, target)

    def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
        """Copy a file to the key, atomically."""
        with _atomic_replace(self._root / key) as partial:
            shutil.copyfile(source, partial)

    def delete(self, key: str) -> None:
        """Delete the file if it exists."""
        (self._root / key).unlink(missing_ok=True)

    def folders(self) -> list[str]:
        """Return the names of the folders directly under the root, sorted."""
        return sorted(path.name for path in self._root.iterdir() if path.is_dir()) if self._root.is_dir() else []

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each file below a folder, by path relative to it."""
        top = self._root / folder
        return {str(path.relative_to(top)): path.stat().st_size for path in top.rglob("*") if path.is_file()}

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with its content."""
        assert folder, "the root is never deleted"
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)


@contextmanager
def _atomic_replace(target: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `target` on success: no reader gets a partial file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield partial
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


class S3Storage(Storage):
    """Objects below a prefix of an S3 bucket."""

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        try:
            self._bucket, self._prefix = split_s3_uri(self.uri)
        except ValueError:
            raise self._problem("is not a folder or s3://bucket/prefix/", "Correct the URI", "invalid_uri") from None
        region = configured_region()
        if region is None:
            raise self._problem("is in S3, and no AWS region is configured", "Set AWS_REGION", "region_missing")

        import boto3
        from botocore.config import Config

        # A custom endpoint has no DNS names of buckets.
        style = "path" if os.environ.get("AWS_ENDPOINT_URL") else "auto"
        settings = Config(retries={"mode": "standard", "max_attempts": 8}, s3={"addressing_style": style})
        self._client: Any = boto3.client("s3", region_name=region, config=settings)

    def require(self, *, create: bool = False) -> None:
        """Raise InputError unless the bucket exists and is accessible. `create` has no effect."""
        from botocore.exceptions import NoCredentialsError

        problems = {
            "NoSuchBucket": ("the bucket does not exist", "Create the bucket, or set another bucket", "bucket_missing"),
            "AccessDenied": (
                "access to the bucket is denied",
                "Allow s3:ListBucket, or set another bucket",
                "bucket_denied",
            ),
        }
        try:
            with self._as_os_errors():  # the node may list this prefix only, and HeadBucket has no prefix
                self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        except S3Error as error:
            default = (str(error), "Correct the bucket, the region or the endpoint", "bucket_not_accessible")
            raise self._problem(*problems.get(error.code, default)) from None
        except OSError as error:
            if isinstance(error.__cause__, NoCredentialsError):
                raise self._problem(
                    "no AWS credentials are configured", "Configure a role or a profile", "credentials_missing"
                ) from None
            raise

    def read(self, key: str) -> bytes | None:
        """Return the object's content; None if it does not exist."""
        try:
            with self._as_os_errors():
                body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()
        except S3Error as error:
            if error.code == "NoSuchKey":
                return None
            raise
        return body

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the object's bytes from `start` to `stop`."""
        if start == stop:
            return b""
        part = f"bytes={start}-{stop - 1}"
        with self._as_os_errors():
            response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=part)
            return _require_length(response["Body"].read(), stop - start, self.uri + key)

    def exists(self, key: str) -> bool:
        """Whether the object exists."""
        try:
            with self._as_os_errors():
                self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except S3Error as error:
            if error.code == "404":
                return False
            raise
        return True

    def write(self, key: str, content: bytes) -> None:
        """Create or replace the object."""
        with self._as_os_errors():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=content)

    def download(self, key: str, target: Path) -> None:
        """Copy the object to a file."""
        with self._as_os_errors():
            self._client.download_file(self._bucket, self._prefix + key, str(target))

    def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
        """Copy a file to the object. `threads`: upload parts of a large file in parallel."""
        from boto3.s3.transfer import TransferConfig

        settings = TransferConfig(use_threads=threads)
        with self._as_os_errors():
            self._client.upload_file(str(source), self._bucket, self._prefix + key, Config=settings)

    def delete(self, key: str) -> None:
        """Delete the object if it exists."""
        with self._as_os_errors():
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def folders(self) -> list[str]:
        """Return the names of the prefixes directly under `uri`, sorted."""
        with self._as_os_errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
            )
            prefixes = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", ())]
        return sorted(prefix.removeprefix(self._prefix).rstrip("/") for prefix in prefixes)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each object below a folder, by key relative to it."""
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        with self._as_os_errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            items = [item for page in pages for item in page.get("Contents", ())]
        return {item["Key"].removeprefix(prefix): item["Size"] for item in items}

    def delete_folder(self, folder: str) -> None:
        """Delete all objects below a folder."""
        assert folder, "the root is never deleted"
        keys = [f"{self._prefix}{folder}/{key}" for key in self.sizes(folder)]
        for first in range(0, len(keys), _DELETE_BATCH_SIZE):
            objects = [{"Key": key} for key in keys[first : first + _DELETE_BATCH_SIZE]]
            with self._as_os_errors():
                response = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            for error in response.get("Errors", ()):
                raise S3Error(f"{self.uri}: {error['Key']}: {error['Message']}", error["Code"])

    @contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        """Convert errors of boto3 into OSError."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            raise S3Error(f"{self.uri}: {error}", error.response["Error"]["Code"]) from error
        except (BotoCoreError, Boto3Error) as error:
            raise OSError(f"{self.uri}: {error}") from error
