"""Upload a folder as a dataset of the data bucket, and list the datasets."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from pydantic import Field

from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket, StoredObject
from trainyard.base import StrictModel
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import INDEX
from trainyard.models.layout import DATASETS, dataset_prefix, upload_key
from trainyard.operations.cluster import Cluster
from trainyard.operations.data_bucket import create_data_bucket, ensure_configured, find_data_bucket
from trainyard.operations.progress import Display, TransferProgress
from trainyard.quantity import quantity

_CHECKSUM = "sha256"  # metadata of each object: SHA-256 of the file
_PARALLEL_FILES = 8


class UploadResult(StrictModel):
    """Result of `trainyard data put`."""

    name: str = Field(description="Name of the dataset.")
    uri: str = Field(description="S3 prefix of its objects.")
    files: int = Field(description="Files of the folder.")
    bytes: int = Field(description="Bytes of these files.")
    uploaded_files: int = Field(description="Files that were uploaded; the others existed with the same checksum.")
    uploaded_bytes: int = Field(description="Bytes of these files.")
    other_objects: tuple[str, ...] = Field(description="Objects of the dataset that the folder does not have.")
    created_bucket: bool = Field(description="Whether the data bucket was created.")


class DatasetSummary(StrictModel):
    """A dataset of the data bucket."""

    name: str = Field(description="Name of the dataset.")
    files: int = Field(description="Objects.")
    bytes: int = Field(description="Bytes of the objects.")
    modified: float = Field(description="Time of the newest object, Unix time in seconds.")
    complete: bool = Field(description="Whether its upload has ended.")


@dataclass(frozen=True)
class _File:
    """A file of the folder; `name` is relative to it."""

    name: str
    path: Path
    bytes: int


def put_dataset(cluster: Cluster, settings: StackSettings, folder: Path, name: str, display: Display) -> UploadResult:
    """Upload the files of a folder as the dataset `name`; create the data bucket if the stack has none.

    Files that exist with the same size and SHA-256 are skipped: a repeated upload continues with the files that are not
    complete. The object `upload_key(name)` marks the dataset as incomplete until the last file, the index of shards, is
    uploaded. Objects that the folder does not have are kept. Raises InputError for a folder without files.
    """
    files = _list_files(folder)
    bucket = find_data_bucket(cluster, settings)
    is_new = bucket is None
    if bucket is None:
        bucket = create_data_bucket(cluster, settings, display)
    elif settings.storage.bucket is None:
        ensure_configured(cluster, settings, bucket, display)
    prefix = dataset_prefix(name)
    existing = {stored.key.removeprefix(prefix): stored for stored in bucket.objects(prefix)}
    bucket.write(upload_key(name), b"")
    *others, last = files
    uploaded = [
        *_upload(bucket, prefix, others, existing, display),
        *_upload(bucket, prefix, [last], existing, display),
    ]
    bucket.delete(upload_key(name))
    return UploadResult(
        name=name,
        uri=f"s3://{bucket.name}/{prefix}",
        files=len(files),
        bytes=sum(file.bytes for file in files),
        uploaded_files=len(uploaded),
        uploaded_bytes=sum(file.bytes for file in uploaded),
        other_objects=tuple(sorted(existing.keys() - {file.name for file in files})),
        created_bucket=is_new,
    )


def files_of(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted. Links are followed, except one to a folder that contains it.

    Raises InputError for a link to a missing file.
    """
    return sorted(_walk(folder, frozenset()))


def _walk(folder: Path, parents: frozenset[Path]) -> Iterator[Path]:
    """Yield the files below a folder. `parents`: the resolved folders that contain it."""
    containing = parents | {folder.resolve()}
    for path in folder.iterdir():
        if path.is_dir():
            if path.resolve() not in containing:
                yield from _walk(path, containing)
        elif path.is_file():
            yield path
        elif path.is_symlink():
            reason, fix = f"is a link to {path.readlink()}, which does not exist", "Correct or delete the link"
            raise InputError([Problem("FOLDER", str(path), reason, fix, "link_broken")])


def _list_files(folder: Path) -> list[_File]:
    """Return the files below a folder in the order of their names, the index of shards last. Raises InputError."""
    if not folder.is_dir():
        problem = Problem("FOLDER", str(folder), "is not a folder", "Name the folder of the files", "folder_missing")
        raise InputError([problem])
    paths = files_of(folder)
    if not paths:
        problem = Problem("FOLDER", str(folder), "has no files", "Name the folder of the files", "folder_empty")
        raise InputError([problem])
    files = [_File(path.relative_to(folder).as_posix(), path, path.stat().st_size) for path in paths]
    return sorted(files, key=lambda file: file.name == INDEX)


def _upload(
    bucket: Bucket, prefix: str, files: Sequence[_File], existing: dict[str, StoredObject], display: Display
) -> Iterator[_File]:
    """Upload files in parallel, unless they exist. Yields the uploaded ones."""
    progress = TransferProgress(display, "upload", sum(file.bytes for file in files))
    s3 = client("s3", bucket.region())

    def upload(file: _File) -> _File | None:
        stored = existing.get(file.name)
        with file.path.open("rb") as content:
            checksum = hashlib.file_digest(content, "sha256").hexdigest()
        if stored is not None and stored.size == file.bytes and _checksum(s3, bucket.name, stored.key) == checksum:
            progress.add(file.bytes)
            return None
        _put(s3, bucket.name, prefix + file.name, file, checksum, progress)
        return file

    with ThreadPoolExecutor(_PARALLEL_FILES) as executor:
        futures = [executor.submit(upload, file) for file in files]
        try:
            for future in as_completed(futures):
                if file := future.result():
                    yield file
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _checksum(s3: Any, bucket: str, key: str) -> str | None:
    return str(s3.head_object(Bucket=bucket, Key=key)["Metadata"].get(_CHECKSUM))


def _put(s3: Any, bucket: str, key: str, file: _File, checksum: str, progress: TransferProgress) -> None:
    # The Pulumi program reads JSON objects by a lookup that returns the content of text types only.
    content_type = "application/json" if key.endswith(".json") else "application/octet-stream"
    try:
        s3.upload_file(
            str(file.path),
            bucket,
            key,
            ExtraArgs={"Metadata": {_CHECKSUM: checksum}, "ContentType": content_type},
            Callback=progress.add,
            Config=TransferConfig(max_concurrency=4),
        )
    except S3UploadFailedError as error:
        raise RuntimeError(f"{file.path} is not uploaded: {error}. Run the command again, it continues") from error


def list_datasets(cluster: Cluster, settings: StackSettings) -> list[DatasetSummary]:
    """Return the datasets of the data bucket by name; none without a bucket."""
    bucket = find_data_bucket(cluster, settings)
    return [] if bucket is None else [_summarize(bucket, name) for name in bucket.folders(DATASETS)]


def _summarize(bucket: Bucket, name: str) -> DatasetSummary:
    objects = list(bucket.objects(dataset_prefix(name)))
    return DatasetSummary(
        name=name,
        files=len(objects),
        bytes=sum(stored.size for stored in objects),
        modified=max(stored.modified for stored in objects),
        complete=bucket.find(upload_key(name)) is None,
    )


def describe_upload(result: UploadResult) -> str:
    """Return the result as text."""
    skipped = result.files - result.uploaded_files
    size = f"{quantity(result.files, 'file')}, {result.bytes / 1e9:.2f} GB"
    text = f"{result.uri}: {size}; {result.uploaded_files} uploaded, {skipped} existed"
    if result.other_objects:
        others = quantity(len(result.other_objects), "object")
        text += f"; {others} that the folder does not have, such as {result.other_objects[0]}"
    return text
