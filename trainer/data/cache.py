"""Shards of a dataset on this node: in a folder they are read where they lie, from S3 they come to a cache on its disk.

Whatever the place, a shard is read only after its content was found to be what the index says. All processes of a node
share the cache; of several that want a shard one brings it, and the others wait.
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

from trainer.data.space import NoRoom, Space, locked, open_shared
from trainer.storage import S3Refused, Storage, open_storage
from trainyard.models.dataset import Shard

_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds between tries: an outage of a minute is ridden out
_PATIENCE = 60.0  # seconds for other processes to let go of what they use
_CHECKED = "checked"  # what is written beside a shard that is read where it lies
_FINAL = {"403", "404", "AccessDenied", "NoSuchBucket", "NoSuchKey", "InvalidAccessKeyId", "SignatureDoesNotMatch"}


class Cache:
    """Shards of the dataset at `uri`. It can be sent to another process, which opens a connection of its own."""

    def __init__(self, uri: str, name: str, folder: Path, limit: float | None = None) -> None:
        """`folder` holds at most `limit` bytes; None: nine tenths of what is free there. `name` is `uri`'s variable."""
        self._uri, self._name = uri, name
        self.space = Space(folder, limit)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in vars(self).items() if key != "storage"}

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self._uri, self._name)

    @property
    def in_place(self) -> bool:
        """Whether shards are read where they lie: where the dataset's URI is a folder."""
        return "://" not in self._uri

    def open(self, shard: Shard, *, let_go: Callable[[], None] | None = None) -> int:
        """A descriptor of the shard's file, which stays on disk until that (and every map of it) is closed.

        `let_go` closes what the caller has open and may open again, where there is no room. Without it nobody waits for
        the shard yet: one try. Raises OSError where it can't be had, NoRoom among them.
        """
        if self.in_place:
            return self._open_in_place(shard)
        while True:
            descriptor = open_shared(self.space.folder / shard.sha256)
            if descriptor is not None:
                if os.fstat(descriptor).st_size == shard.bytes:
                    self.space.used_now(shard.sha256)
                    return descriptor
                os.close(descriptor)  # cut short by a crash of the machine
            with locked(self.space.lock(shard.sha256)):
                if not self._is_there(shard):
                    self._bring(shard, let_go)

    def ensure(self, shard: Shard) -> None:
        """Have the shard ready, if it can be had now."""
        os.close(self.open(shard))

    def touch(self, shard: Shard) -> bool:
        """Whether the shard is ready; then it was used just now, and others go before it."""
        with suppress(OSError):
            if self.in_place:
                path = self.path(shard)
                return _says(self.beside(shard, _CHECKED), _state(path, path.stat()))
            if self._is_there(shard):
                self.space.used_now(shard.sha256)
                return True
        return False

    def path(self, shard: Shard) -> Path:
        """Where the shard lies on this node once it is open."""
        return Path(self._uri) / shard.key if self.in_place else self.space.folder / shard.sha256

    def name_of(self, shard: Shard) -> str:
        """The shard as messages name it."""
        return f"{self._uri.rstrip('/')}/{shard.key}"

    def beside(self, shard: Shard, suffix: str) -> Path:
        """A file that belongs to the shard and goes with it."""
        self.space.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.space.folder / f"{shard.sha256}.{suffix}"

    def _is_there(self, shard: Shard) -> bool:
        try:
            return (self.space.folder / shard.sha256).stat().st_size == shard.bytes
        except FileNotFoundError:
            return False

    def _open_in_place(self, shard: Shard) -> int:
        path = self.path(shard)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is not there, and its index names it: upload the dataset again") from None
        try:
            state = _state(path, os.fstat(descriptor))
            seen = self.beside(shard, _CHECKED)
            if not _says(seen, state):
                with locked(self.space.lock(shard.sha256)):
                    if not _says(seen, state):
                        _check(path, shard, str(path))
                        seen.write_text(json.dumps(state))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _bring(self, shard: Shard, let_go: Callable[[], None] | None) -> None:
        """Called with the shard's lock."""
        partial = self.space.partial(shard.sha256)
        try:
            self._take_room(shard, let_go)
            self._download(shard, partial, () if let_go is None else _PAUSES)
            _check(partial, shard, self.name_of(shard))
            partial.rename(self.space.folder / shard.sha256)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                full = f"{self.space.folder} is full. Lower data.cache_gib, or name a larger folder in TRAINYARD_CACHE"
                raise OSError(error.errno, full) from error
            raise
        finally:
            for file in self.space.folder.glob(f"{partial.name}*"):  # a transfer has files of its own beside it
                file.unlink(missing_ok=True)

    def _take_room(self, shard: Shard, let_go: Callable[[], None] | None) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self.space.take(shard.sha256, shard.bytes)
            except NoRoom:
                if let_go is None or time.monotonic() >= deadline:
                    raise
                let_go()
            time.sleep(0.2)

    def _download(self, shard: Shard, target: Path, pauses: tuple[float, ...]) -> None:
        began = time.monotonic()
        for pause in (*pauses, None):
            try:
                return self.storage.download(shard.key, target)
            except S3Refused as error:
                if error.code in _FINAL:
                    raise OSError(f"{self.name_of(shard)} is in the index and can't be read: {error}") from error
                last: OSError = error
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                last = error
            if pause is not None:
                time.sleep(pause)
        tried = f"after {time.monotonic() - began:.0f} s of tries"
        raise OSError(f"{self.name_of(shard)} can't be fetched {tried}: {last}") from last


def _state(path: Path, found: os.stat_result) -> list[object]:
    """By which a file is known to be the one that was checked."""
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]


def _says(file: Path, state: list[object]) -> bool:
    try:
        return bool(json.loads(file.read_text()) == state)
    except (OSError, ValueError):
        return False


def _check(file: Path, shard: Shard, name: str) -> None:
    """Raises OSError unless the file is the shard of the index."""
    size = file.stat().st_size
    if size != shard.bytes:
        raise OSError(f"{name} has {size} bytes, its index says {shard.bytes}: upload the dataset again")
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != shard.sha256:
        raise OSError(f"{name} has SHA-256 {found}, its index says {shard.sha256}: upload the dataset again")
