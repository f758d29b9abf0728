"""The order of samples: a pure function of (seed, position), the same for any number of ranks."""

import pickle
import time
from collections.abc import Iterable

import numpy as np
import pytest

from trainer.data.order import SampleOrder, positions_of_rank, streams_of_ranks

SHAPES = [
    ([1], 1, 1),
    ([1], 64, 7),  # fewer samples than streams
    ([5, 3, 9, 0, 2], 4, 3),  # a shard without a sample
    ([37, 41], 3, 1000),
    ([100] * 7, 64, 10),
    ([1000] * 13, 16, 64),
]


def located(order: SampleOrder, positions: Iterable[int]) -> list[tuple[int, int]]:
    shards, indices = order.locate(list(positions))
    return list(zip(shards.tolist(), indices.tolist(), strict=True))


@pytest.mark.parametrize(("counts", "streams", "block"), SHAPES)
def test_each_epoch_is_a_permutation(counts: list[int], streams: int, block: int) -> None:
    order = SampleOrder(counts, seed=7, streams=streams, block=block)
    every = [(shard, index) for shard, count in enumerate(counts) for index in range(count)]
    for epoch in range(4):
        assert sorted(located(order, range(epoch * order.size, (epoch + 1) * order.size))) == every


@pytest.mark.parametrize(("counts", "streams", "block"), SHAPES)
def test_single_position_is_located_as_in_a_batch(counts: list[int], streams: int, block: int) -> None:
    order = SampleOrder(counts, seed=7, streams=streams, block=block)
    positions = range(order.size - 1, order.size + 40)
    assert [located(order, [position])[0] for position in positions] == located(order, positions)
    assert located(pickle.loads(pickle.dumps(order)), positions) == located(order, positions)


def test_epochs_and_seeds_differ() -> None:
    orders = [SampleOrder([100] * 8, seed=seed, streams=4, block=50) for seed in (1, 2)]
    first, second = located(orders[0], range(800)), located(orders[0], range(800, 1600))
    other = located(orders[1], range(800))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 20
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 20


def test_order_is_stable_across_releases() -> None:
    """A run that newer code resumes keeps its order of samples."""
    order = SampleOrder([11, 7, 23], seed=1234, streams=3, block=5)
    assert located(order, [0, 1, 2, 40, 41, 12_345]) == [(0, 0), (2, 4), (2, 19), (2, 15), (1, 2), (0, 5)]


def test_samples_are_well_mixed_within_a_stream() -> None:
    order = SampleOrder([4096], seed=3, streams=1, block=4096)
    at = order.locate(range(4096))[1]
    # The first block is short: the rest is one permutation.
    mixed = at[at.size // 64 :]
    assert abs(np.corrcoef(mixed[:-1], mixed[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(len(mixed)), mixed)[0, 1]) < 0.05
    assert np.mean(np.abs(np.diff(mixed)) < 16) < 0.02


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_ranks_share_each_step_without_overlap_or_loss(ranks: int) -> None:
    batch, micro_batches_per_rank = 24, 24 // ranks
    for step in range(5):
        micro_batches = [
            positions_of_rank(step * batch, rank, ranks, 1, number)
            for rank in range(ranks)
            for number in range(micro_batches_per_rank)
        ]
        positions = [position for micro_batch in micro_batches for position in micro_batch]
        assert sorted(positions) == list(range(step * batch, (step + 1) * batch))


@pytest.mark.parametrize(("ranks", "streams"), [(2, 8), (4, 8), (8, 8), (6, 12)])
def test_node_reads_only_its_own_streams_in_every_epoch(ranks: int, streams: int) -> None:
    """Each of two nodes reads half of the streams and, except at the edges of segments, half of the shards."""
    order = SampleOrder([51] * 40, seed=5, streams=streams, block=16)
    nodes = [range(ranks // 2), range(ranks // 2, ranks)]
    read: list[set[int]] = [set(), set()]
    for shards, node in zip(read, nodes, strict=True):
        for epoch in range(3):
            positions = [at for at in range(epoch * order.size, (epoch + 1) * order.size) if at % ranks in node]
            shards.update(shard for shard, _ in located(order, positions))
    assert [len(streams_of_ranks(node, ranks, streams)) for node in nodes] == [streams // 2] * 2
    assert len(read[0] & read[1]) <= streams
    assert not set(streams_of_ranks(nodes[0], ranks, streams)) & set(streams_of_ranks(nodes[1], ranks, streams))


@pytest.mark.parametrize(("ranks", "streams", "expected"), [(4, 8, 2), (8, 8, 1), (16, 8, 1), (6, 4, 2), (3, 4, 4)])
def test_rank_reads_the_minimum_number_of_streams(ranks: int, streams: int, expected: int) -> None:
    for rank in range(ranks):
        streams_read = {at % streams for number in range(50) for at in positions_of_rank(0, rank, ranks, 1, number)}
        assert streams_read == set(streams_of_ranks([rank], ranks, streams))
        assert len(streams_read) == expected


def test_node_reads_the_same_shards_in_every_epoch() -> None:
    """Its cache is reused: only a shard at the edge of two streams' segments may move to another node."""
    order = SampleOrder([50] * 40, seed=5, streams=8, block=16)
    read = [
        {shard for shard, _ in located(order, range(epoch * order.size, (epoch + 1) * order.size, 2))}
        for epoch in (0, 3)
    ]
    assert len(read[0] ^ read[1]) <= 8
    assert len(read[0]) < 30


def test_stream_reads_its_shards_one_after_another() -> None:
    order = SampleOrder([100] * 40, seed=5, streams=4, block=25)
    shards = [shard for shard, _ in located(order, range(1, 4000, 4))]
    for at in range(0, 1000, 50):
        assert len(set(shards[at : at + 50])) <= 3


@pytest.mark.parametrize("position", [0, 3, 777, 990, 1999])
def test_upcoming_parts_cover_the_next_samples(position: int) -> None:
    order = SampleOrder([7] * 71 + [3], seed=5, streams=4, block=20)
    streams = [1, 3]
    parts = {part.shard for part in order.upcoming_parts(position, streams)}
    # A block has 20 samples, and the next block is included: at least 20 samples of each stream are covered.
    upcoming = [at for at in range(position, position + 4 * 20) if at % 4 in streams]
    assert {shard for shard, _ in located(order, upcoming)} <= parts


def test_locate_is_fast_with_many_shards() -> None:
    """The table of 100,000 shards is built once per epoch, and a list of samples is never built."""
    start = time.perf_counter()
    order = SampleOrder(np.full(100_000, 16_000), seed=1, streams=64, block=65_536)
    assert len(set(located(order, range(10**9, 10**9 + 1000)))) == 1000
    assert time.perf_counter() - start < 10
