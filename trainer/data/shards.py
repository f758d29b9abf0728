"""Memory maps of shards: the recently read files of this process are kept open."""

import mmap
import os
from collections.abc import Sequence

from trainer.data.cache import Cache
from trainyard.models.dataset import Shard

_MAX_MAPS = 128  # of one generation; each map has a descriptor, and the default limit of a process is 1024
# Reads of one generation. A map that is not read for one to two generations is closed, because the cache can't evict an
# open file.
_READS_PER_GENERATION = 1024


class MappedShards:
    """`shards[number]` is the content of one of `listed`, read-only. A pickled copy has no open files."""

    _current: dict[int, memoryview]
    _previous: dict[int, memoryview]
    _reads: int

    def __init__(self, listed: Sequence[Shard], cache: Cache) -> None:
        self.listed = tuple(listed)
        self.cache = cache
        self._close_all()

    def __getstate__(self) -> dict[str, object]:
        return {"listed": self.listed, "cache": self.cache}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._close_all()

    def __getitem__(self, number: int) -> memoryview:
        """Return the content of a shard. Raises OSError if it is unavailable or differs from the index."""
        self._reads += 1
        if self._reads > _READS_PER_GENERATION or len(self._current) > _MAX_MAPS:
            self._current, self._previous, self._reads = {}, self._current, 0
        content = self._current.get(number)
        if content is None:
            content = self._previous.pop(number, None)
            self._current[number] = content = self._map(number) if content is None else content
        return content

    def close(self) -> None:
        """Close all maps."""
        self._close_all()

    def _map(self, number: int) -> memoryview:
        descriptor = self.cache.open(self.listed[number], release=self._close_all)
        try:
            # The map has a copy of the descriptor, and so the lock that marks the file as in use.
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        return memoryview(mapped)

    def _close_all(self) -> None:
        self._current, self._previous, self._reads = {}, {}, 0
