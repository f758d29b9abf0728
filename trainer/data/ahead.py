"""Shards fetched before they are needed, by threads beside the training: it waits for storage at the beginning only."""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from trainer.data.cache import Cache
from trainer.data.order import Order
from trainyard.models.dataset import Shard

_THREADS = 4  # shards at once; each comes over several connections already
_NEAR = 256  # of a rank's next positions, whose shards come first and in the very order of need
_log = logging.getLogger(__name__)


class Ahead:
    """Has ready what one rank's streams read in their present blocks and in the next, as far as `budget` bytes go."""

    def __init__(
        self,
        cache: Cache,
        order: Order,
        listed: Sequence[Shard],
        *,
        rank: int,
        ranks: int,
        streams: Sequence[int],
        budget: float,
        besides: Sequence[Shard] = (),
    ) -> None:
        """`besides`: other shards that are to be there soon, and to stay: the held-out ones."""
        self._cache, self._order, self._listed, self._besides = cache, order, tuple(listed), tuple(besides)
        self._rank, self._ranks, self._streams, self._budget = rank, ranks, tuple(streams), budget
        # A plan that all fits reaches a block of each stream beyond its position, or is of all these streams ever
        # read: a quarter of that is soon enough. Else one stream after the other comes to a new block.
        self._seldom = max(1, order.streams * order.block // 4)
        self._often = min(self._seldom, max(order.streams, order.block // 2))
        self._changed = threading.Condition()
        self._planned: int | None = None
        self._asked: int | None = None
        self._missing: deque[Shard] = deque()
        self._complete = False  # the plan all fits, and none of it could not be had
        self._closed = False
        # Daemons: a job that ends by an error waits for no download.
        self._threads = [
            threading.Thread(target=self._work, name=f"ahead-{number}", daemon=True) for number in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def moved(self, position: int) -> bool:
        """Training has come to this position (of all ranks). Whether that asks for a new plan."""
        if self._planned is not None:
            passed = position - self._planned
            if 0 <= passed < (self._seldom if self._complete else self._often):
                return False
        with self._changed:
            self._planned = self._asked = position
            self._complete = False
            self._changed.notify()
        return True

    def close(self) -> None:
        """A download that is under way ends, or goes with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (shard := self._next()) is not None:
            try:
                self._cache.ensure(shard)
            except OSError as error:  # who needs it tries longer, and tells
                self._complete = False
                _log.debug("%s is not ahead: %s", shard.key, error)

    def _next(self) -> Shard | None:
        while True:
            with self._changed:
                while not (self._closed or self._missing or self._asked is not None):
                    self._changed.wait()
                if self._closed:
                    return None
                if self._asked is None:
                    return self._missing.popleft()
                position, self._asked = self._asked, None
            missing, complete = self._plan(position)  # which takes a while: training does not wait for it
            with self._changed:
                if self._asked is None:  # else a later plan is due
                    self._missing, self._complete = missing, complete
                    self._changed.notify(len(missing))

    def _plan(self, position: int) -> tuple[deque[Shard], bool]:
        """What is to be fetched, and whether that is all which is needed."""
        needed, complete = self._needed(position)
        # The nearest is touched last: whatever goes to make room for others, it goes last.
        there = {shard.sha256 for shard in reversed(needed) if self._cache.touch(shard)}
        return deque(shard for shard in needed if shard.sha256 not in there), complete

    def _needed(self, position: int) -> tuple[list[Shard], bool]:
        """Those for which there is room, in the order of need, and whether they are all."""
        left, needed = self._budget, dict[str, Shard]()
        for shard in self._in_order(position):
            if shard.sha256 in needed:
                continue
            left -= shard.bytes
            if left < 0 and needed:
                return list(needed.values()), False
            needed[shard.sha256] = shard
        return list(needed.values()), True

    def _in_order(self, position: int) -> Iterator[Shard]:
        first = position - position % self._ranks + self._rank
        near, _ = self._order.locate(range(first, first + min(_NEAR * self._ranks, self._order.size), self._ranks))
        yield from (self._listed[number] for number in near.tolist())
        yield from self._besides
        yield from (self._listed[piece.shard] for piece in self._order.ahead(position, self._streams))
