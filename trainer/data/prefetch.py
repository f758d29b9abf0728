"""Downloads shards before they are needed, in threads, so that training waits for storage only at the start."""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from trainer.data.cache import Cache
from trainer.data.order import SampleOrder
from trainyard.models.dataset import Shard

_THREADS = 4  # shards at a time; each download uses several connections
_NEAR_POSITIONS = 256  # next positions of a rank; their shards are downloaded first, in the order of use
log = logging.getLogger(__name__)


class Prefetcher:
    """Downloads the shards of the current and the next block of a rank's streams, up to `budget` bytes."""

    def __init__(
        self,
        cache: Cache,
        order: SampleOrder,
        listed: Sequence[Shard],
        *,
        rank: int,
        ranks: int,
        streams: Sequence[int],
        budget: float,
        additional: Sequence[Shard] = (),
    ) -> None:
        """`additional`: further shards to download early and to keep, such as those of the held-out samples."""
        self._cache, self._order, self._listed, self._additional = cache, order, tuple(listed), tuple(additional)
        self._rank, self._ranks, self._streams, self._budget = rank, ranks, tuple(streams), budget
        # Positions between two plans. A plan that fits in the budget covers at least a block of each stream beyond its
        # position, or everything that these streams read, so a quarter of that is early enough. Otherwise a new plan is
        # due more often, because the streams reach new blocks one after another.
        self._long_interval = max(1, order.streams * order.block // 4)
        self._short_interval = min(self._long_interval, max(order.streams, order.block // 2))
        self._changed = threading.Condition()
        self._planned_position: int | None = None
        self._requested_position: int | None = None
        self._missing: deque[Shard] = deque()
        self._is_complete = False  # the plan fits in the budget, and no download failed
        self._closed = False
        # Daemon threads: a job that ends with an error does not wait for downloads.
        self._threads = [
            threading.Thread(target=self._work, name=f"prefetch-{number}", daemon=True) for number in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def update_position(self, position: int) -> bool:
        """Report the position of training, counted over all ranks. Returns whether this starts a new plan."""
        if self._planned_position is not None:
            passed = position - self._planned_position
            if 0 <= passed < (self._long_interval if self._is_complete else self._short_interval):
                return False
        with self._changed:
            self._planned_position = self._requested_position = position
            self._is_complete = False
            self._changed.notify()
        return True

    def close(self) -> None:
        """Stop the threads. A download in progress finishes, or ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (shard := self._next()) is not None:
            try:
                self._cache.ensure_cached(shard)
            except OSError as error:  # the reader of the shard retries, and reports the error
                self._is_complete = False
                log.debug("shard %s is not prefetched: %s", shard.key, error)

    def _next(self) -> Shard | None:
        while True:
            with self._changed:
                while not (self._closed or self._missing or self._requested_position is not None):
                    self._changed.wait()
                if self._closed:
                    return None
                if self._requested_position is None:
                    return self._missing.popleft()
                position, self._requested_position = self._requested_position, None
            missing, is_complete = self._plan(position)  # without the lock: training does not wait for the plan
            with self._changed:
                if self._requested_position is None:  # otherwise a later plan is due
                    self._missing, self._is_complete = missing, is_complete
                    self._changed.notify(len(missing))

    def _plan(self, position: int) -> tuple[deque[Shard], bool]:
        """Return the shards to download, and whether the budget covers all that are needed."""
        needed, is_complete = self._needed(position)
        # The nearest shard is touched last, so that it is evicted last.
        cached = {shard.sha256 for shard in reversed(needed) if self._cache.touch(shard)}
        return deque(shard for shard in needed if shard.sha256 not in cached), is_complete

    def _needed(self, position: int) -> tuple[list[Shard], bool]:
        """Return the shards that fit in the budget, in the order of use, and whether they are all."""
        available, needed = self._budget, dict[str, Shard]()
        for shard in self._in_order(position):
            if shard.sha256 in needed:
                continue
            available -= shard.bytes
            if available < 0 and needed:
                return list(needed.values()), False
            needed[shard.sha256] = shard
        return list(needed.values()), True

    def _in_order(self, position: int) -> Iterator[Shard]:
        first = position - position % self._ranks + self._rank
        count = min(_NEAR_POSITIONS * self._ranks, self._order.size)
        near, _ = self._order.locate(range(first, first + count, self._ranks))
        yield from (self._listed[number] for number in near.tolist())
        yield from self._additional
        yield from (self._listed[part.shard] for part in self._order.upcoming_parts(position, self._streams))
