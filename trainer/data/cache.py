"""Shards of a dataset on this node: read in place if the dataset is in a folder, cached on disk if it is in S3.

A shard is read only after its content has been verified against the index. All processes of a node share the cache: one
of them downloads a shard, and the others wait.
"""

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from trainer.data.disk_space import CacheFullError, DiskSpace, file_lock, open_shared
from trainer.storage import S3Error, Storage, open_storage
from trainyard.models.dataset import Shard

_RETRY_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # a job survives an outage of a minute
_SPACE_TIMEOUT_SECONDS = 60.0  # wait for other processes to release shards
_VERIFIED = "checked"  # suffix of the sidecar file of a verified shard that is read in place
_PERMANENT_CODES = {
    "403",
    "404",
    "AccessDenied",
    "NoSuchBucket",
    "NoSuchKey",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
}


class Cache:
    """Shards of the dataset at `uri`. A pickled copy in another process opens its own connection."""

    def __init__(self, uri: str, name: str, folder: Path, limit: float | None = None) -> None:
        """`folder` holds at most `limit` bytes; None: nine tenths of the free space. `name`: variable with the URI."""
        self._uri, self._name = uri, name
        self.disk_space = DiskSpace(folder, limit)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in vars(self).items() if key != "storage"}

    @cached_property
    def storage(self) -> Storage:
        """Storage of the dataset, opened at first use in each process."""
        return open_storage(self._uri, self._name)

    @property
    def reads_in_place(self) -> bool:
        """Whether shards are read in place: whether the dataset's URI is a folder."""
        return "://" not in self._uri

    def open(self, shard: Shard, *, release: Callable[[], None] | None = None) -> int:
        """Return a descriptor of the shard's file. The file remains until the descriptor and its maps are closed.

        If the cache is full, `release` is called to close files that the caller can open again. Without `release`, the
        shard is not urgent: the download is tried once. Raises OSError, such as CacheFullError, if the shard is
        unavailable.
        """
        if self.reads_in_place:
            return self._open_in_place(shard)
        while True:
            descriptor = open_shared(self.disk_space.folder / shard.sha256)
            if descriptor is not None:
                if os.fstat(descriptor).st_size == shard.bytes:
                    self.disk_space.mark_used(shard.sha256)
                    return descriptor
                os.close(descriptor)  # truncated by a crash of the machine
            with file_lock(self.disk_space.lock_path(shard.sha256)):
                if not self._is_cached(shard):
                    self._fetch(shard, release)

    def ensure_cached(self, shard: Shard) -> None:
        """Download and verify the shard unless it is cached. Raises OSError after one attempt."""
        os.close(self.open(shard))

    def touch(self, shard: Shard) -> bool:
        """Return whether the shard is ready to be read, and mark it as most recently used."""
        with suppress(OSError):
            if self.reads_in_place:
                path = self.local_path(shard)
                return _has_content(self.sidecar_path(shard, _VERIFIED), _file_identity(path, path.stat()))
            if self._is_cached(shard):
                self.disk_space.mark_used(shard.sha256)
                return True
        return False

    def local_path(self, shard: Shard) -> Path:
        """Return the path of an open shard on this node."""
        return Path(self._uri) / shard.key if self.reads_in_place else self.disk_space.folder / shard.sha256

    def shard_uri(self, shard: Shard) -> str:
        """Return the URI of the shard, for messages."""
        return f"{self._uri.rstrip('/')}/{shard.key}"

    def sidecar_path(self, shard: Shard, suffix: str) -> Path:
        """Return the path of a file that belongs to the shard and is evicted with it."""
        self.disk_space.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.disk_space.folder / f"{shard.sha256}.{suffix}"

    def _is_cached(self, shard: Shard) -> bool:
        try:
            return (self.disk_space.folder / shard.sha256).stat().st_size == shard.bytes
        except FileNotFoundError:
            return False

    def _open_in_place(self, shard: Shard) -> int:
        path = self.local_path(shard)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path} does not exist, but the index lists it: upload the dataset again"
            ) from None
        try:
            identity = _file_identity(path, os.fstat(descriptor))
            verified = self.sidecar_path(shard, _VERIFIED)
            if not _has_content(verified, identity):
                with file_lock(self.disk_space.lock_path(shard.sha256)):
                    if not _has_content(verified, identity):
                        _verify(path, shard, str(path))
                        verified.write_text(json.dumps(identity))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _fetch(self, shard: Shard, release: Callable[[], None] | None) -> None:
        """Download and verify the shard. The caller holds the shard's lock."""
        partial = self.disk_space.partial_path(shard.sha256)
        try:
            self._reserve_space(shard, release)
            self._download(shard, partial, () if release is None else _RETRY_PAUSES_SECONDS)
            _verify(partial, shard, self.shard_uri(shard))
            partial.rename(self.disk_space.folder / shard.sha256)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                folder = self.disk_space.folder
                message = f"{folder} is full. Lower data.cache_gib, or set TRAINYARD_CACHE to a larger folder"
                raise OSError(error.errno, message) from error
            raise
        finally:
            for file in self.disk_space.folder.glob(f"{partial.name}*"):  # also the transfer's temporary files
                file.unlink(missing_ok=True)

    def _reserve_space(self, shard: Shard, release: Callable[[], None] | None) -> None:
        deadline = time.monotonic() + _SPACE_TIMEOUT_SECONDS
        while True:
            try:
                return self.disk_space.reserve(shard.sha256, shard.bytes)
            except CacheFullError:
                if release is None or time.monotonic() >= deadline:
                    raise
                release()
            time.sleep(0.2)

    def _download(self, shard: Shard, target: Path, pauses_seconds: tuple[float, ...]) -> None:
        start = time.monotonic()
        for pause in (*pauses_seconds, None):
            try:
                return self.storage.download(shard.key, target)
            except S3Error as error:
                if error.code in _PERMANENT_CODES:
                    raise OSError(f"{self.shard_uri(shard)} is in the index and can't be read: {error}") from error
                last: OSError = error
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                last = error
            if pause is not None:
                time.sleep(pause)
        seconds = time.monotonic() - start
        raise OSError(f"{self.shard_uri(shard)} can't be downloaded after {seconds:.0f} s of retries: {last}") from last


def _file_identity(path: Path, status: os.stat_result) -> list[object]:
    """Return path, size and modification time, which identify the file that was verified."""
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _has_content(file: Path, expected: list[object]) -> bool:
    try:
        return bool(json.loads(file.read_text()) == expected)
    except (OSError, ValueError):
        return False


def _verify(file: Path, shard: Shard, name: str) -> None:
    """Raise OSError unless size and SHA-256 of the file are those of the index."""
    size = file.stat().st_size
    if size != shard.bytes:
        raise OSError(f"{name} has {size} bytes, its index has {shard.bytes}: upload the dataset again")
    with file.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if sha256 != shard.sha256:
        raise OSError(f"{name} has SHA-256 {sha256}, its index has {shard.sha256}: upload the dataset again")
