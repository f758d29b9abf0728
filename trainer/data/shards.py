"""Shards as memory: maps of the files that this process reads, those used lately kept open."""

import mmap
import os
from collections.abc import Sequence

from trainer.data.cache import Cache
from trainyard.models.dataset import Shard

_AT_MOST = 128  # maps of one age, each with a descriptor: a process may have 1024 where nobody raised it
_AGE = 1024  # reads; what was not read for so long, or twice it, is closed: while it is open no cache can remove it


class Shards:
    """`shards[number]` is the content of one of `listed`, read-only. It is sent to other processes with none open."""

    _young: dict[int, memoryview]
    _old: dict[int, memoryview]
    _reads: int

    def __init__(self, listed: Sequence[Shard], cache: Cache) -> None:
        self.listed = tuple(listed)
        self.cache = cache
        self._forget()

    def __getstate__(self) -> dict[str, object]:
        return {"listed": self.listed, "cache": self.cache}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._forget()

    def __getitem__(self, number: int) -> memoryview:
        """Raises OSError where the shard can't be had, or is not what the index says."""
        self._reads += 1
        if self._reads > _AGE or len(self._young) > _AT_MOST:
            self._young, self._old, self._reads = {}, self._young, 0
        found = self._young.get(number)
        if found is None:
            found = self._old.pop(number, None)
            self._young[number] = found = self._map(number) if found is None else found
        return found

    def close(self) -> None:
        self._forget()

    def _map(self, number: int) -> memoryview:
        descriptor = self.cache.open(self.listed[number], let_go=self._forget)
        try:
            # The map has a copy of the descriptor, and with it the lock that says the file is in use.
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        return memoryview(mapped)

    def _forget(self) -> None:
        self._young, self._old, self._reads = {}, {}, 0
