"""A place for objects: a folder, or a prefix in S3. Whoever asks for one gets the same few methods."""

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainyard.base import InputError, Problem
from trainyard.models.layout import split_s3_uri

_DELETED_AT_ONCE = 1000  # S3's own limit
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # a URI with a slash too few: no folder is called so


def open_storage(uri: str, name: str) -> "Storage":
    """The place `uri` names; `name` is the variable that named it, for messages."""
    return S3Storage(uri, name) if "://" in uri else Folder(uri, name)


def region() -> str | None:
    """The region of S3, by the environment or the profile; boto3 alone does not read AWS_REGION."""
    import boto3

    return os.environ.get("AWS_REGION") or boto3.Session().region_name


class Storage(ABC):
    """Objects by keys relative to `uri`, which ends in a slash. A place that fails raises OSError."""

    def __init__(self, uri: str, name: str) -> None:
        self.uri = uri.rstrip("/") + "/"
        self.name = name

    @abstractmethod
    def require(self, *, make: bool = False) -> None:
        """Raise InputError unless the place is there. A missing folder is made where `make` says so, a bucket never."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The object, or None where there is none."""

    @abstractmethod
    def exists(self, key: str) -> bool: ...

    @abstractmethod
    def write(self, key: str, content: bytes) -> None: ...

    @abstractmethod
    def download(self, key: str, target: Path) -> None: ...

    @abstractmethod
    def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
        """`threads`: a large one in parts side by side; but a process does not end before such threads have."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """The object, if there is one."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Names of the folders directly under `uri`, sorted."""

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of each object in a folder and below, by keys relative to the folder; "" is `uri` itself."""

    @abstractmethod
    def delete_folder(self, folder: str) -> None:
        """Whatever is in a folder and below."""

    def _problem(self, why: str, fix: str) -> InputError:
        return InputError([Problem(key=self.name, value=self.uri, why=why, fix=fix)])


class S3Refused(OSError):
    """S3 answered with an error."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Folder(Storage):
    @property
    def _root(self) -> Path:
        return Path(self.uri)

    def require(self, *, make: bool = False) -> None:
        if _SCHEME.match(self.uri):
            raise self._problem("is neither a folder nor s3://bucket/prefix/", "Mend it")
        if not make and not self._root.is_dir():
            raise self._problem("there is no such folder", "Name one that is there")
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._problem(f"can't be made: {error.strerror}", "Name a folder that can be written") from None

    def read(self, key: str) -> bytes | None:
        path = self._root / key
        return path.read_bytes() if path.is_file() else None

    def exists(self, key: str) -> bool:
        return (self._root / key).is_file()

    def write(self, key: str, content: bytes) -> None:
        with _replacing(self._root / key) as partial:
            partial.write_bytes(content)

    def download(self, key: str, target: Path) -> None:
        shutil.copyfile(self._root / key, target)

    def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
        with _replacing(self._root / key) as partial:
            shutil.copyfile(source, partial)

    def delete(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)

    def folders(self) -> list[str]:
        return sorted(path.name for path in self._root.iterdir() if path.is_dir()) if self._root.is_dir() else []

    def sizes(self, folder: str) -> dict[str, int]:
        top = self._root / folder
        return {str(path.relative_to(top)): path.stat().st_size for path in top.rglob("*") if path.is_file()}

    def delete_folder(self, folder: str) -> None:
        assert folder, "never the whole place"
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A path to write beside `target`, renamed onto it when all went well: no reader sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield partial
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


class S3Storage(Storage):
    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        try:
            self._bucket, self._prefix = split_s3_uri(self.uri)
        except ValueError:
            raise self._problem("is neither a folder nor s3://bucket/prefix/", "Mend it") from None
        if region() is None:
            raise self._problem("is in S3, and no region is known", "Set AWS_REGION")

        import boto3
        from botocore.config import Config

        # An endpoint of one's own has no bucket names in its DNS.
        style = "path" if os.environ.get("AWS_ENDPOINT_URL") else "auto"
        settings = Config(retries={"mode": "standard", "max_attempts": 8}, s3={"addressing_style": style})
        self._client: Any = boto3.client("s3", region_name=region(), config=settings)

    def require(self, *, make: bool = False) -> None:
        from botocore.exceptions import NoCredentialsError

        why = {"404": "there is no such bucket", "403": "these credentials may not use this bucket"}
        try:
            with self._calling():
                self._client.head_bucket(Bucket=self._bucket)
        except S3Refused as error:
            raise self._problem(why.get(error.code, str(error)), "Make the bucket, or name another") from None
        except OSError as error:
            if isinstance(error.__cause__, NoCredentialsError):
                raise self._problem("no AWS credentials were found", "Give the process a role or a profile") from None
            raise

    def read(self, key: str) -> bytes | None:
        try:
            with self._calling():
                body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()
        except S3Refused as error:
            if error.code == "NoSuchKey":
                return None
            raise
        return body

    def exists(self, key: str) -> bool:
        try:
            with self._calling():
                self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except S3Refused as error:
            if error.code == "404":
                return False
            raise
        return True

    def write(self, key: str, content: bytes) -> None:
        with self._calling():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=content)

    def download(self, key: str, target: Path) -> None:
        with self._calling():
            self._client.download_file(self._bucket, self._prefix + key, str(target))

    def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
        from boto3.s3.transfer import TransferConfig

        settings = TransferConfig(use_threads=threads)
        with self._calling():
            self._client.upload_file(str(source), self._bucket, self._prefix + key, Config=settings)

    def delete(self, key: str) -> None:
        with self._calling():
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def folders(self) -> list[str]:
        with self._calling():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
            )
            found = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", ())]
        return sorted(prefix.removeprefix(self._prefix).rstrip("/") for prefix in found)

    def sizes(self, folder: str) -> dict[str, int]:
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        with self._calling():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            found = [item for page in pages for item in page.get("Contents", ())]
        return {item["Key"].removeprefix(prefix): item["Size"] for item in found}

    def delete_folder(self, folder: str) -> None:
        assert folder, "never the whole place"
        keys = [f"{self._prefix}{folder}/{key}" for key in self.sizes(folder)]
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            objects = [{"Key": key} for key in keys[first : first + _DELETED_AT_ONCE]]
            with self._calling():
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            for refused in answer.get("Errors", ()):
                raise S3Refused(f"{self.uri}: {refused['Key']}: {refused['Message']}", refused["Code"])

    @contextmanager
    def _calling(self) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            raise S3Refused(f"{self.uri}: {error}", error.response["Error"]["Code"]) from error
        except (BotoCoreError, Boto3Error) as error:
            raise OSError(f"{self.uri}: {error}") from error
