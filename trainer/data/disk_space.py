"""Disk space of the shard cache that all processes of a node share: file locks, and eviction within a size limit.

A process opens a file in use with a shared lock. A process that removes a file needs an exclusive lock on it. All locks
are the kernel's (flock): the kernel releases them when the process exits for any reason.
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GIB = 2**30
_SHARE_OF_FREE = 0.9  # default limit: the job's other files need the rest
_PARTIAL = ".partial"
_SHA256 = re.compile("[0-9a-f]{64}")  # names of shards


class CacheFullError(OSError):
    """A new file exceeds the limit of the cache, and all other files are in use."""


def open_shared(path: Path) -> int | None:
    """Open a file with a shared lock; None if it does not exist.

    The file is not removed until the descriptor, its copies and its memory maps are closed.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # the file was removed between the two calls


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock on `path`, a file that is created for the lock and removed afterwards.

    Yields True. With wait=False it yields False if another process or thread holds the lock.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            yield False
            return
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)  # the previous holder has removed this file
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


class DiskSpace:
    """Files of `folder`, with at most `limit` bytes; None: nine tenths of the free space and the cached files."""

    def __init__(self, folder: Path, limit: float | None) -> None:
        self.folder = folder
        self._limit = limit

    @property
    def limit_bytes(self) -> float:
        """Maximum size of all files, in bytes."""
        if self._limit is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            cached = sum(size for size, _, _ in self._files())
            self._limit = _SHARE_OF_FREE * (shutil.disk_usage(self.folder).free + cached)
        return self._limit

    def partial_path(self, name: str) -> Path:
        """Return the path where a file is written before it is renamed."""
        return self.folder / f"{name}{_PARTIAL}"

    def lock_path(self, name: str) -> Path:
        """Return the path of a file's lock."""
        return self.folder / f"{name}.lock"

    def mark_used(self, name: str) -> None:
        """Make the file the most recently used one, which is evicted last."""
        now = time.time_ns()  # the kernel's clock for file times advances only every few milliseconds
        with suppress(FileNotFoundError):
            os.utime(self.folder / name, ns=(now, now))

    def reserve(self, name: str, size: int) -> None:
        """Reserve `size` bytes for a new file. Evicts the least recently used files if necessary.

        The caller holds the file's lock. Raises CacheFullError.
        """
        with file_lock(self.folder / "space.lock"):
            files = self._files()
            excess = sum(other_size for other_size, _, other in files if other != name) + size - self.limit_bytes
            for other_size, _, other in sorted(files, key=lambda file: file[1]):
                if excess <= 0:
                    break
                if other != name and self._evict(other):
                    excess -= other_size
            if excess > 0:
                raise CacheFullError(
                    f"{self.folder} has no space for {size / GIB:.2f} GiB within data.cache_gib "
                    f"({self.limit_bytes / GIB:.2f}): all other files are in use. Raise data.cache_gib, or lower "
                    "data.streams or data.shuffle_block_samples"
                )
            # A sparse file of the final size: other processes count it from now on.
            with self.partial_path(name).open("wb") as stream:
                stream.truncate(size)

    def _files(self) -> list[tuple[int, float, str]]:
        """Return size, time of last use and name of each file, cached or partial, sidecar files included."""
        sizes: dict[str, int] = {}
        times: dict[str, float] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                name, _, rest = entry.name.partition(".")
                if not _SHA256.fullmatch(name) or rest == "lock" or rest.startswith("partial."):
                    continue  # an unrelated file, or a transfer's temporary file next to the partial file
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    sizes[name] = sizes.get(name, 0) + status.st_size
                    times[name] = max(times.get(name, 0.0), status.st_mtime)
        return [(size, times[name], name) for name, size in sizes.items()]

    def _evict(self, name: str) -> bool:
        """Remove a file and its sidecar files. Returns False if another process uses or downloads it."""
        with file_lock(self.lock_path(name), wait=False) as locked:
            if not locked:
                return False
            descriptor = open_shared(self.folder / name) if (self.folder / name).exists() else None
            try:
                if descriptor is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for file in self.folder.glob(f"{name}*"):
                    if file.suffix != ".lock":
                        file.unlink(missing_ok=True)
            except BlockingIOError:
                return False
            finally:
                if descriptor is not None:
                    os.close(descriptor)
        return True
