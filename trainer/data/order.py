"""The order of samples: a pure function of seed and position. No state is kept or saved.

The shards, in an order that depends on the seed, form one sequence of samples. The sequence is divided into `streams`
equal segments, and position p reads the next sample of stream p % streams. A rank that reads every R-th position then
reads only some of the streams if R divides the number of streams or is a multiple of it, and the same streams in every
epoch, so that a node's cache is reused. Each epoch has another order of the shards (or parts of shards) within a
stream, and another order of the samples within blocks of it. A stream reads its shards one after another, those of one
block at a time.

The design is similar to py1s of MosaicML's library streaming, which keeps the order of an epoch as a table of all
samples; this module keeps a table of shards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainer.data.counter_rng import IntArray, permute, random_bits

_SHARDS, _PARTS, _BLOCKS = range(3)  # purposes of the random bits


@dataclass(frozen=True)
class ShardPart:
    """A part of a shard. A single stream reads it."""

    shard: int
    samples: int


@dataclass(frozen=True)
class _Epoch:
    segment_starts: IntArray  # streams + 1: first sample of each stream's segment, then the number of samples
    part_starts: IntArray  # parts + 1: first sample of each part in the order of this epoch, then the number of samples
    part_shards: IntArray  # shard of each part
    part_offsets: IntArray  # first sample of each part, counted in its shard


class SampleOrder:
    """Order of the samples of shards with `counts[i]` samples. Positions count from 0 over all epochs."""

    def __init__(self, counts: Sequence[int] | IntArray, *, seed: int, streams: int, block: int) -> None:
        """`block`: number of consecutive samples of a stream that are shuffled together."""
        self._counts = np.asarray(counts, dtype=np.int64)
        self.size = int(self._counts.sum())
        assert self.size, "an order needs a sample"
        self.streams, self.block, self._seed = streams, block, seed
        keys = random_bits(seed, _SHARDS, np.arange(len(self._counts)))
        sequence = np.argsort(keys, kind="stable")
        self._sequence: IntArray = sequence[self._counts[sequence] > 0]
        self._ends: IntArray = np.cumsum(self._counts[self._sequence])
        self._epoch = lru_cache(maxsize=3)(self._build_epoch)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_epoch"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._epoch = lru_cache(maxsize=3)(self._build_epoch)

    def locate(self, positions: range | Sequence[int] | npt.NDArray[np.integer]) -> tuple[IntArray, IntArray]:
        """Return the shard of the sample at each position, and the index of the sample in that shard."""
        if isinstance(positions, range):
            positions = np.arange(positions.start, positions.stop, positions.step)
        array = np.asarray(positions, dtype=np.int64)
        epochs, offsets = np.divmod(array, self.size)
        shards, indices = np.empty_like(array), np.empty_like(array)
        for epoch in np.unique(epochs):
            selected = epochs == epoch
            shards[selected], indices[selected] = self._locate(
                int(epoch), array[selected] % self.streams, offsets[selected]
            )
        return shards, indices

    def upcoming_parts(self, position: int, streams: Sequence[int]) -> Iterator[ShardPart]:
        """Yield the parts of shards that these streams read from `position` on.

        First come the parts of the current blocks, then those of the next blocks, until they have as many samples as a
        block (the first and the last block of an epoch are shorter) or the next epoch ends.
        """
        epoch, offset = divmod(position, self.size)
        cursors = dict.fromkeys(streams, (epoch, offset // self.streams, -1))
        while cursors:
            for stream, (stream_epoch, row, covered) in list(cursors.items()):
                if stream_epoch > epoch + 1 or covered >= self.block:
                    del cursors[stream]
                elif row >= self._length(stream_epoch, stream):  # also if the stream has one sample less than others
                    cursors[stream] = stream_epoch + 1, 0, covered
                else:
                    start, stop = self._block_of(stream_epoch, stream, row)
                    yield from self._parts(stream_epoch, stream, start, stop)
                    cursors[stream] = stream_epoch, stop, 0 if covered < 0 else covered + stop - start

    def _locate(self, epoch: int, streams: IntArray, offsets: IntArray) -> tuple[IntArray, IntArray]:
        tables = self._epoch(epoch)
        rows = offsets // self.streams
        segment_start = tables.segment_starts[streams]
        # The first block of each stream has another length, so that the streams do not all need new shards at once.
        missing = self.block - 1 - self.block * streams // self.streams
        blocks = (rows + missing) // self.block
        start = np.maximum(0, blocks * self.block - missing)
        stop = np.minimum((blocks + 1) * self.block - missing, tables.segment_starts[streams + 1] - segment_start)
        keys = random_bits(self._seed, _BLOCKS, epoch, streams, blocks)
        samples = segment_start + start + permute(rows - start, stop - start, keys)
        parts = np.searchsorted(tables.part_starts, samples, side="right") - 1
        return tables.part_shards[parts], tables.part_offsets[parts] + samples - tables.part_starts[parts]

    def _block_of(self, epoch: int, stream: int, row: int) -> tuple[int, int]:
        """Return the first row of the block that has `row`, and the row after the block."""
        missing = self.block - 1 - self.block * stream // self.streams
        block = (row + missing) // self.block
        stop = min((block + 1) * self.block - missing, self._length(epoch, stream))
        return max(0, block * self.block - missing), stop

    def _length(self, epoch: int, stream: int) -> int:
        starts = self._epoch(epoch).segment_starts
        return int(starts[stream + 1] - starts[stream])

    def _parts(self, epoch: int, stream: int, start: int, stop: int) -> Iterator[ShardPart]:
        if start >= stop:  # a stream without samples
            return
        tables = self._epoch(epoch)
        segment_start = int(tables.segment_starts[stream])
        first = int(np.searchsorted(tables.part_starts, segment_start + start, side="right")) - 1
        last = int(np.searchsorted(tables.part_starts, segment_start + stop, side="left"))
        for part in range(first, last):
            samples = int(tables.part_starts[part + 1] - tables.part_starts[part])
            yield ShardPart(int(tables.part_shards[part]), samples)

    def _build_epoch(self, epoch: int) -> _Epoch:
        # Some streams have one sample more than the others. Which streams these are changes with the epoch.
        length, longer_streams = divmod(self.size, self.streams)
        turn = (np.arange(self.streams) - epoch * self.size) % self.streams
        segment_starts = np.concatenate([[0], np.cumsum(length + (turn < longer_streams))])
        starts = np.union1d(segment_starts[:-1], np.concatenate([[0], self._ends[:-1]]))
        starts = starts[starts < self.size]
        stream = np.searchsorted(segment_starts, starts, side="right") - 1
        index = np.searchsorted(self._ends, starts, side="right")
        offsets = starts - (self._ends[index] - self._counts[self._sequence[index]])
        keys = random_bits(self._seed, _PARTS, epoch, starts)
        shuffled = np.lexsort((keys, stream))
        lengths = np.diff(starts, append=self.size)[shuffled]
        return _Epoch(
            segment_starts=segment_starts,
            part_starts=np.concatenate([[0], np.cumsum(lengths)]),
            part_shards=self._sequence[index][shuffled],
            part_offsets=offsets[shuffled],
        )


def positions_of_rank(consumed: int, rank: int, ranks: int, micro_batch: int, number: int) -> range:
    """Return the positions of the micro-batch `number` of one of the ranks that share the batch.

    Micro-batches are counted from the sample `consumed`. A rank has every position p with p % ranks == rank. `consumed`
    is a multiple of the batch size, and so of `ranks`.
    """
    assert consumed % ranks == 0, (consumed, ranks)
    start = consumed + rank + number * micro_batch * ranks
    return range(start, start + micro_batch * ranks, ranks)


def streams_of_ranks(local_ranks: Sequence[int], ranks: int, streams: int) -> list[int]:
    """Return the streams that some of these ranks read, of `ranks` in all."""
    divisor = int(np.gcd(ranks, streams))
    remainders = {rank % divisor for rank in local_ranks}
    return [stream for stream in range(streams) if stream % divisor in remainders]
