"""The folder in which all processes of a node share shards: locks on its files, and room for more within a limit.

A file in use is open with a shared lock, so whoever wants to remove it has only to ask for an exclusive one. All locks
are the kernel's (flock) and go with the process that held them, however it ends.
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
_OF_FREE = 0.9  # of what is free, where no limit is set: the job's own files need some
_PARTIAL = ".partial"
_SHA256 = re.compile("[0-9a-f]{64}")  # names of shards


class NoRoom(OSError):
    """Everything in the folder is in use, and one more file would go beyond the limit."""


def open_shared(path: Path) -> int | None:
    """A descriptor of the file, which stays until it is closed (with all its copies and maps); None: no such file."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # removed between the two calls


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold `path` (which is made for it and removed after) alone. Without `wait`, False where another holds it."""
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
        os.close(descriptor)  # who held it before us has removed it
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


class Space:
    """Files of `folder`, at most `limit` bytes of them; None: nine tenths of what is free or ours already."""

    def __init__(self, folder: Path, limit: float | None) -> None:
        self.folder = folder
        self._limit = limit

    @property
    def limit(self) -> float:
        """Bytes."""
        if self._limit is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            ours = sum(size for size, _, _ in self._files())
            self._limit = _OF_FREE * (shutil.disk_usage(self.folder).free + ours)
        return self._limit

    def partial(self, name: str) -> Path:
        """Where the file is written before it gets its name."""
        return self.folder / f"{name}{_PARTIAL}"

    def lock(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def used_now(self, name: str) -> None:
        """The file is the last one to go."""
        now = time.time_ns()  # the kernel's own clock for files stands still for milliseconds
        with suppress(FileNotFoundError):
            os.utime(self.folder / name, ns=(now, now))

    def take(self, name: str, size: int) -> None:
        """Make room for a new file by removing those longest unused. Called with the file's lock. Raises NoRoom."""
        with locked(self.folder / "space.lock"):
            files = self._files()
            excess = sum(known for known, _, other in files if other != name) + size - self.limit
            for known, _, other in sorted(files, key=lambda file: file[1]):
                if excess <= 0:
                    break
                if other != name and self._remove(other):
                    excess -= known
            if excess > 0:
                raise NoRoom(
                    f"{self.folder} has no room for {size / GIB:.2f} GiB within data.cache_gib "
                    f"({self.limit / GIB:.2f}): the rest is in use. Raise data.cache_gib, or lower data.streams or "
                    "data.shuffle_block"
                )
            # As large as it will be, though empty: others count it from now on.
            with self.partial(name).open("wb") as stream:
                stream.truncate(size)

    def _files(self) -> list[tuple[int, float, str]]:
        """Size, time of last use, and name of what is there or on its way, its side files counted to it."""
        sizes: dict[str, int] = {}
        times: dict[str, float] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                name, _, rest = entry.name.partition(".")
                if not _SHA256.fullmatch(name) or rest == "lock" or rest.startswith("partial."):
                    continue  # not ours, or a transfer's own beside what is counted already
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    sizes[name] = sizes.get(name, 0) + found.st_size
                    times[name] = max(times.get(name, 0.0), found.st_mtime)
        return [(size, times[name], name) for name, size in sizes.items()]

    def _remove(self, name: str) -> bool:
        """Whether the file and all beside it are gone; not where someone uses or brings it."""
        with locked(self.lock(name), wait=False) as ours:
            if not ours:
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
