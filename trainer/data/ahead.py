"""Shards fetched before they are needed, by threads beside the training: it waits for storage at the beginning only."""

import logging
import threading
from collections.abc import Iterator, Sequence

from contract.dataset import Shard
from trainer.data.cache import Cache
from trainer.data.order import Order

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
        # One stream after the other comes to a new block; in so many positions, half of them.
        self._step = max(order.streams, order.block // 2)
        self._changed = threading.Condition()
        self._planned: int | None = None
        self._plan: Iterator[Shard] | None = None
        self._closed = False
        # Daemons: a job that ends by an error waits for no download.
        self._threads = [
            threading.Thread(target=self._work, name=f"ahead-{number}", daemon=True) for number in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def moved(self, position: int) -> None:
        """Training has come to this position (of all ranks)."""
        step = position // self._step
        if step == self._planned:
            return
        self._planned = step
        with self._changed:
            self._plan = self._needed(position)
            self._changed.notify_all()

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
                _log.debug("%s is not ahead: %s", shard.key, error)

    def _next(self) -> Shard | None:
        with self._changed:
            while not self._closed:
                shard = next(self._plan, None) if self._plan is not None else None
                if shard is not None:
                    return shard
                self._plan = None
                self._changed.wait()
        return None

    def _needed(self, position: int) -> Iterator[Shard]:
        left, seen = self._budget, set()
        for shard in self._in_order(position):
            if shard.sha256 in seen:
                continue
            seen.add(shard.sha256)
            left -= shard.bytes
            if left < 0 and len(seen) > 1:
                return
            yield shard

    def _in_order(self, position: int) -> Iterator[Shard]:
        first = position - position % self._ranks + self._rank
        near, _ = self._order.locate(range(first, first + min(_NEAR * self._ranks, self._order.size), self._ranks))
        yield from (self._listed[number] for number in near.tolist())
        yield from self._besides
        yield from (self._listed[piece.shard] for piece in self._order.ahead(position, self._streams))
