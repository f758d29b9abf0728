"""The order of samples: a pure function of (seed, position), the same for any number of ranks."""

import pickle
import time
from collections.abc import Iterable

import numpy as np
import pytest

from trainer.data.order import Order, of_rank, streams_of

SHAPES = [
    ([1], 1, 1),
    ([1], 64, 7),  # fewer samples than streams
    ([5, 3, 9, 0, 2], 4, 3),  # a shard without a sample
    ([37, 41], 3, 1000),
    ([100] * 7, 64, 10),
    ([1000] * 13, 16, 64),
]


def found(order: Order, positions: Iterable[int]) -> list[tuple[int, int]]:
    shards, indices = order.locate(list(positions))
    return list(zip(shards.tolist(), indices.tolist(), strict=True))


@pytest.mark.parametrize(("counts", "streams", "block"), SHAPES)
def test_each_epoch_is_a_permutation(counts: list[int], streams: int, block: int) -> None:
    order = Order(counts, seed=7, streams=streams, block=block)
    every = [(shard, index) for shard, count in enumerate(counts) for index in range(count)]
    for epoch in range(4):
        assert sorted(found(order, range(epoch * order.size, (epoch + 1) * order.size))) == every


@pytest.mark.parametrize(("counts", "streams", "block"), SHAPES)
def test_one_position_alone_is_as_among_others(counts: list[int], streams: int, block: int) -> None:
    order = Order(counts, seed=7, streams=streams, block=block)
    positions = range(order.size - 1, order.size + 40)
    assert [found(order, [position])[0] for position in positions] == found(order, positions)
    assert found(pickle.loads(pickle.dumps(order)), positions) == found(order, positions)


def test_epochs_and_seeds_differ() -> None:
    orders = [Order([100] * 8, seed=seed, streams=4, block=50) for seed in (1, 2)]
    first, second = found(orders[0], range(800)), found(orders[0], range(800, 1600))
    other = found(orders[1], range(800))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 20
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 20


def test_the_order_does_not_change_with_a_release() -> None:
    """A run that is resumed by newer code goes on with its own samples."""
    order = Order([11, 7, 23], seed=1234, streams=3, block=5)
    assert found(order, [0, 1, 2, 40, 41, 12_345]) == [(0, 0), (2, 4), (2, 19), (2, 15), (1, 2), (0, 5)]


def test_within_a_stream_samples_are_well_mixed() -> None:
    order = Order([4096], seed=3, streams=1, block=4096)
    at = order.locate(range(4096))[1]
    # The first block is short: the rest is one permutation.
    mixed = at[at.size // 64 :]
    assert abs(np.corrcoef(mixed[:-1], mixed[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(len(mixed)), mixed)[0, 1]) < 0.05
    assert np.mean(np.abs(np.diff(mixed)) < 16) < 0.02


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_ranks_share_each_step_without_overlap_or_loss(ranks: int) -> None:
    batch, own = 24, 24 // ranks
    for step in range(5):
        micro_batches = [
            of_rank(step * batch, rank, ranks, 1, number) for rank in range(ranks) for number in range(own)
        ]
        positions = [position for each in micro_batches for position in each]
        assert sorted(positions) == list(range(step * batch, (step + 1) * batch))


@pytest.mark.parametrize(("ranks", "streams"), [(2, 8), (4, 8), (8, 8), (6, 12)])
def test_a_node_meets_only_its_own_streams_in_every_epoch(ranks: int, streams: int) -> None:
    """Of two nodes each reads half of the streams and, but for those on the edge of a segment, half of the shards."""
    order = Order([51] * 40, seed=5, streams=streams, block=16)
    nodes = [range(ranks // 2), range(ranks // 2, ranks)]
    read: list[set[int]] = [set(), set()]
    for met, node in zip(read, nodes, strict=True):
        for epoch in range(3):
            positions = [at for at in range(epoch * order.size, (epoch + 1) * order.size) if at % ranks in node]
            met.update(shard for shard, _ in found(order, positions))
    assert [len(streams_of(node, ranks, streams)) for node in nodes] == [streams // 2] * 2
    assert len(read[0] & read[1]) <= streams
    assert not set(streams_of(nodes[0], ranks, streams)) & set(streams_of(nodes[1], ranks, streams))


@pytest.mark.parametrize(("ranks", "streams", "expected"), [(4, 8, 2), (8, 8, 1), (16, 8, 1), (6, 4, 2), (3, 4, 4)])
def test_a_rank_meets_no_more_streams_than_it_must(ranks: int, streams: int, expected: int) -> None:
    for rank in range(ranks):
        met = {at % streams for number in range(50) for at in of_rank(0, rank, ranks, 1, number)}
        assert met == set(streams_of([rank], ranks, streams))
        assert len(met) == expected


def test_a_node_reads_the_same_shards_in_every_epoch() -> None:
    """Its cache serves it again: only a shard on the edge of two streams' segments may change hands."""
    order = Order([50] * 40, seed=5, streams=8, block=16)
    read = [
        {shard for shard, _ in found(order, range(epoch * order.size, (epoch + 1) * order.size, 2))} for epoch in (0, 3)
    ]
    assert len(read[0] ^ read[1]) <= 8
    assert len(read[0]) < 30


def test_a_stream_reads_its_shards_one_after_the_other() -> None:
    order = Order([100] * 40, seed=5, streams=4, block=25)
    shards = [shard for shard, _ in found(order, range(1, 4000, 4))]
    for at in range(0, 1000, 50):
        assert len(set(shards[at : at + 50])) <= 3


@pytest.mark.parametrize("position", [0, 3, 777, 990, 1999])
def test_what_is_ahead_is_what_comes(position: int) -> None:
    order = Order([7] * 71 + [3], seed=5, streams=4, block=20)
    own = [1, 3]
    pieces = {piece.shard for piece in order.ahead(position, own)}
    # A block is 20 samples, the next one is ahead too: so many are certain, whatever of the present block is left.
    coming = [at for at in range(position, position + 4 * 20) if at % 4 in own]
    assert {shard for shard, _ in found(order, coming)} <= pieces


def test_many_shards_are_found_quickly() -> None:
    """The table of 100,000 shards is made once an epoch, and no list of samples ever."""
    began = time.perf_counter()
    order = Order(np.full(100_000, 16_000), seed=1, streams=64, block=65_536)
    assert len(set(found(order, range(10**9, 10**9 + 1000)))) == 1000
    assert time.perf_counter() - began < 10
