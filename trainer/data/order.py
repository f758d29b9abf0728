"""Which sample stands at each position of a run: a pure function of (seed, position). Nothing of it is kept or saved.

All shards, in an order of the seed, are one long line of samples. The line is cut into `streams` equal segments, and
position p reads the next sample of stream p % streams: a rank that takes every R-th position meets only streams of its
own where R and the number of streams divide one another, in every epoch the same ones, so that a node's cache serves
it again. What changes with the epoch is the order of the shards (or parts of them) within a stream, and the order of
samples within blocks of it. A stream reads its shards one after the other, a block's at a time.

The design is near to py1s of MosaicML's library streaming, which keeps an epoch's order as a table of all samples; this
one keeps a table of shards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainer.data.draws import Counts, keyed, permuted

_LINE, _PIECES, _BLOCKS = range(3)  # what a key is for


@dataclass(frozen=True)
class Piece:
    """A part of one shard that one stream reads."""

    shard: int
    samples: int


@dataclass(frozen=True)
class _Epoch:
    segments: Counts  # streams + 1: where each stream's segment begins in the line, then the line's end
    begins: Counts  # pieces + 1: where each piece begins in the line as this epoch reads it, then the line's end
    shards: Counts  # of each piece
    first: Counts  # of each piece: its first sample in its shard


class Order:
    """Of `counts[i]` samples in shard i. Positions count from 0 over all epochs."""

    def __init__(self, counts: Sequence[int] | Counts, *, seed: int, streams: int, block: int) -> None:
        self._counts = np.asarray(counts, dtype=np.int64)
        self.size = int(self._counts.sum())
        assert self.size, "an order needs a sample"
        self.streams, self.block, self._seed = streams, block, seed
        keys = keyed(seed, _LINE, np.arange(len(self._counts)))
        line = np.argsort(keys, kind="stable")
        self._line: Counts = line[self._counts[line] > 0]
        self._ends: Counts = np.cumsum(self._counts[self._line])
        self._epoch = lru_cache(maxsize=3)(self._tables)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_epoch"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._epoch = lru_cache(maxsize=3)(self._tables)

    def locate(self, positions: range | Sequence[int] | npt.NDArray[np.integer]) -> tuple[Counts, Counts]:
        """The shard of the sample at each position, and its index in that shard."""
        at = np.arange(positions.start, positions.stop, positions.step) if isinstance(positions, range) else positions
        at = np.asarray(at, dtype=np.int64)
        epochs, places = np.divmod(at, self.size)
        shards, indices = np.empty_like(at), np.empty_like(at)
        for epoch in np.unique(epochs):
            of_it = epochs == epoch
            shards[of_it], indices[of_it] = self._locate(int(epoch), at[of_it] % self.streams, places[of_it])
        return shards, indices

    def ahead(self, position: int, streams: Sequence[int]) -> Iterator[Piece]:
        """Parts of shards that these streams read from `position` on: of their present blocks, then of the next ones
        until as many samples as a block has are covered (an epoch's first and last are short), or the next epoch."""
        epoch, place = divmod(position, self.size)
        at = dict.fromkeys(streams, (epoch, place // self.streams, -1))
        while at:
            for stream, (of_epoch, row, covered) in list(at.items()):
                if of_epoch > epoch + 1 or covered >= self.block:
                    del at[stream]
                elif row >= self._length(of_epoch, stream):  # also where its epoch is a sample shorter than others'
                    at[stream] = of_epoch + 1, 0, covered
                else:
                    start, stop = self._block_of(of_epoch, stream, row)
                    yield from self._pieces(of_epoch, stream, start, stop)
                    at[stream] = of_epoch, stop, 0 if covered < 0 else covered + stop - start

    def _locate(self, epoch: int, streams: Counts, places: Counts) -> tuple[Counts, Counts]:
        tables = self._epoch(epoch)
        rows = places // self.streams
        begin = tables.segments[streams]
        # The first block is short, another length for each stream: they do not all come to new shards at once.
        missing = self.block - 1 - self.block * streams // self.streams
        blocks = (rows + missing) // self.block
        start = np.maximum(0, blocks * self.block - missing)
        stop = np.minimum((blocks + 1) * self.block - missing, tables.segments[streams + 1] - begin)
        keys = keyed(self._seed, _BLOCKS, epoch, streams, blocks)
        line = begin + start + permuted(rows - start, stop - start, keys)
        pieces = np.searchsorted(tables.begins, line, side="right") - 1
        return tables.shards[pieces], tables.first[pieces] + line - tables.begins[pieces]

    def _block_of(self, epoch: int, stream: int, row: int) -> tuple[int, int]:
        missing = self.block - 1 - self.block * stream // self.streams
        block = (row + missing) // self.block
        stop = min((block + 1) * self.block - missing, self._length(epoch, stream))
        return max(0, block * self.block - missing), stop

    def _length(self, epoch: int, stream: int) -> int:
        segments = self._epoch(epoch).segments
        return int(segments[stream + 1] - segments[stream])

    def _pieces(self, epoch: int, stream: int, start: int, stop: int) -> Iterator[Piece]:
        if start >= stop:  # a stream without samples
            return
        tables = self._epoch(epoch)
        begin = int(tables.segments[stream])
        first = int(np.searchsorted(tables.begins, begin + start, side="right")) - 1
        last = int(np.searchsorted(tables.begins, begin + stop, side="left"))
        for piece in range(first, last):
            yield Piece(int(tables.shards[piece]), int(tables.begins[piece + 1] - tables.begins[piece]))

    def _tables(self, epoch: int) -> _Epoch:
        # The streams take turns through all epochs, so which of them are a sample longer changes with the epoch.
        each, longer = divmod(self.size, self.streams)
        turn = (np.arange(self.streams) - epoch * self.size) % self.streams
        segments = np.concatenate([[0], np.cumsum(each + (turn < longer))])
        begins = np.union1d(segments[:-1], np.concatenate([[0], self._ends[:-1]]))
        begins = begins[begins < self.size]
        stream = np.searchsorted(segments, begins, side="right") - 1
        place = np.searchsorted(self._ends, begins, side="right")
        first = begins - (self._ends[place] - self._counts[self._line[place]])
        keys = keyed(self._seed, _PIECES, epoch, begins)
        turned = np.lexsort((keys, stream))
        lengths = np.diff(begins, append=self.size)[turned]
        return _Epoch(
            segments=segments,
            begins=np.concatenate([[0], np.cumsum(lengths)]),
            shards=self._line[place][turned],
            first=first[turned],
        )


def of_rank(consumed: int, rank: int, ranks: int, micro_batch: int, count: int) -> range:
    """Positions of the `count`-th micro-batch of one of the ranks that share the batch, counted from `consumed`.

    A rank takes every position p with p % ranks == rank. `consumed` is a multiple of the batch, and so of `ranks`.
    """
    assert consumed % ranks == 0, (consumed, ranks)
    start = consumed + rank + count * micro_batch * ranks
    return range(start, start + micro_batch * ranks, ranks)


def streams_of(ranks_here: Sequence[int], ranks: int, streams: int) -> list[int]:
    """Those that some of these ranks read, of `ranks` in all."""
    common = int(np.gcd(ranks, streams))
    here = {rank % common for rank in ranks_here}
    return [stream for stream in range(streams) if stream % common in here]
