"""Creates the checkpoint writer and reader of Amazon's S3 connector for PyTorch.

The import is slow, so that a run with checkpoints in a folder does not import this module.
"""

import os
from functools import cache
from typing import Any

from s3torchconnector import S3ClientConfig, S3ReaderConstructor
from s3torchconnector._s3client import S3Client
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
from s3torchconnector.dcp.s3_file_system import S3FileSystem
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from trainyard.aws.region import configured_region

_MAX_GAP_BYTES = 2**20  # a request takes as long as the transfer of this many bytes


def s3_writer(uri: str, copy_buffer_bytes: int) -> FileSystemWriter:
    """Create a writer to S3. `copy_buffer_bytes`: bytes that are copied ahead from a GPU."""
    # One thread, because the library loses the failures of further threads. The S3 client has its own threads.
    writer: FileSystemWriter = S3StorageWriter(
        _region(),
        uri,
        s3client_config=_client_config(),
        thread_count=1,
        per_thread_copy_ahead=copy_buffer_bytes,
        overwrite=True,
    )
    writer.fs = _file_system()
    return writer


def s3_reader(uri: str) -> FileSystemReader:
    """Create a reader from S3 into memory, without files on disk."""
    # A gap between two entries up to this size is read with them: the entries in the gap are read by other ranks.
    constructor = S3ReaderConstructor.dcp_optimized(max_gap_size=_MAX_GAP_BYTES)
    s3_storage_reader = S3StorageReader(
        _region(), uri, s3client_config=_client_config(), reader_constructor=constructor
    )
    s3_storage_reader.fs = _file_system(constructor)
    reader: FileSystemReader = s3_storage_reader
    return reader


def _file_system(reader: Any = None) -> Any:
    """Use one client per process: each client costs 0.1 s, threads and connections."""
    client = _client(_region(), os.environ.get("AWS_ENDPOINT_URL"))
    return S3FileSystem(_region(), s3_client=client, reader_constructor=reader)


@cache
def _client(region: str, endpoint: str | None) -> Any:
    """Create the client. It recreates its connections in a forked process."""
    return S3Client(region, endpoint=endpoint, s3client_config=_client_config())


def _region() -> str:
    name = configured_region()
    assert name, "open_storage has checked it"
    return name


def _client_config() -> Any:
    # The DNS of a custom endpoint has no bucket names.
    has_custom_endpoint = bool(os.environ.get("AWS_ENDPOINT_URL"))
    # Few attempts by the client, because its pauses grow to a minute: the whole operation is retried by the caller.
    return S3ClientConfig(force_path_style=has_custom_endpoint, max_attempts=4)
