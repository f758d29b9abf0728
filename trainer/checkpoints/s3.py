"""The connector's writer and reader. Importing it costs those who use a folder."""

import os
from functools import cache
from typing import Any

from s3torchconnector import S3ClientConfig, S3ReaderConstructor
from s3torchconnector._s3client import S3Client
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
from s3torchconnector.dcp.s3_file_system import S3FileSystem
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from trainer.storage import region

_GAP = 2**20  # bytes: a request takes as long as so many


def s3_writer(uri: str, ahead: int) -> FileSystemWriter:
    """`ahead`: bytes on their way from a GPU."""
    # One thread: the library loses the failure of any further one. The client has threads of its own.
    found: FileSystemWriter = S3StorageWriter(
        _region(), uri, s3client_config=_settings(), thread_count=1, per_thread_copy_ahead=ahead, overwrite=True
    )
    found.fs = _files()
    return found


def s3_reader(uri: str) -> FileSystemReader:
    """From S3, straight into memory."""
    # What lies between two entries comes with them where it is less than this: other ranks read it already.
    constructor = S3ReaderConstructor.dcp_optimized(max_gap_size=_GAP)
    made = S3StorageReader(_region(), uri, s3client_config=_settings(), reader_constructor=constructor)
    made.fs = _files(constructor)
    found: FileSystemReader = made
    return found


def _files(reader: Any = None) -> Any:
    """On the process's one client: a new one costs 0.1 s, threads and connections."""
    client = _client(_region(), os.environ.get("AWS_ENDPOINT_URL"))
    return S3FileSystem(_region(), s3_client=client, reader_constructor=reader)


@cache
def _client(region: str, endpoint: str | None) -> Any:
    """It makes itself anew in a process that was forked."""
    return S3Client(region, endpoint=endpoint, s3client_config=_settings())


def _region() -> str:
    found = region()
    assert found, "open_storage has asked for it"
    return found


def _settings() -> Any:
    own_endpoint = bool(os.environ.get("AWS_ENDPOINT_URL"))  # which has no bucket names in its DNS
    # Few tries of its own, whose pauses grow to a minute: the whole is tried again here.
    return S3ClientConfig(force_path_style=own_endpoint, max_attempts=4)
