"""Prefetch of shards: up to the budget, the nearest shards first, with few plans."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.polling import eventually
from tests.trainer.data.conftest import config, write_shard, write_tokens
from trainer.data import open_data
from trainer.data.cache import Cache
from trainer.data.order import SampleOrder
from trainer.data.prefetch import Prefetcher
from trainer.settings import Environment
from trainer.storage import S3Storage
from trainyard.models.dataset import Shard

SIZE, SHARDS, STREAMS, BLOCK = 1000, 24, 4, 2000
LONG_INTERVAL, SHORT_INTERVAL = STREAMS * BLOCK // 4, BLOCK // 2  # positions after which a plan is renewed
CreatePrefetcher = Callable[..., Prefetcher]


@pytest.fixture
def order() -> SampleOrder:
    return SampleOrder([SIZE] * SHARDS, seed=1, streams=STREAMS, block=BLOCK)


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    (tmp_path / "data").mkdir()
    return [write_shard(tmp_path / "data", f"{number}.bin", bytes([number]) * SIZE, SIZE) for number in range(SHARDS)]


@pytest.fixture
def create_prefetcher(
    uploaded: Callable[[Path], str], shards: list[Shard], order: SampleOrder, tmp_path: Path
) -> Iterator[CreatePrefetcher]:
    """Creates prefetchers of a single rank, with a budget of a number of shards."""
    cache = Cache(uploaded(tmp_path / "data"), "DATA_URI", tmp_path / "cache", SHARDS * SIZE)
    created = []

    def create(budget: float) -> Prefetcher:
        streams = range(STREAMS)
        created.append(Prefetcher(cache, order, shards, rank=0, ranks=1, streams=streams, budget=budget * SIZE))
        return created[-1]

    yield create
    for prefetcher in created:
        prefetcher.close()


def nearest(order: SampleOrder, position: int) -> list[int]:
    """Return the shards in the order in which training reads them."""
    return list(dict.fromkeys(order.locate(range(position, position + order.size))[0].tolist()))


def planned(order: SampleOrder, position: int) -> set[int]:
    return {part.shard for part in order.upcoming_parts(position, range(STREAMS))}


def cached(shards: Sequence[Shard], tmp_path: Path) -> set[int]:
    return {number for number, shard in enumerate(shards) if (tmp_path / "cache" / shard.sha256).exists()}


def test_shards_are_downloaded_before_they_are_needed(
    environment_for: Callable[..., Environment],
    uploaded: Callable[[Path], str],
    downloads: list[tuple[str, str]],
    tmp_path: Path,
) -> None:
    """At the first sample, shards of the current and the next blocks and held-out shards are downloaded."""
    index = write_tokens(tmp_path / "data", [8 * 40 + 1] * 30, vocabulary=1000)
    uri = uploaded(tmp_path / "data")
    data = open_data(config(data={"shuffle_block_samples": 128}), environment_for(uri), rank=0, ranks=1)
    batches = data.train_batches(0)
    next(batches)
    held_out = tmp_path / "cache" / index.validation[0].sha256
    eventually(lambda: held_out.exists() and len(downloads) > 10, "the prefetched shards")
    while len(downloads) < 29:  # the shards that training needs next are prefetched
        count = len(downloads)
        for _ in range(128):
            next(batches)
        eventually(lambda: len(downloads) > count or len(downloads) >= 29, "the next shards")  # noqa: B023
    data.close()
    assert [key for key, thread in downloads if not thread.startswith("prefetch-")][4:] == []


def test_nearest_shards_are_downloaded_up_to_the_budget(
    create_prefetcher: CreatePrefetcher, order: SampleOrder, shards: list[Shard], tmp_path: Path
) -> None:
    create_prefetcher(3).update_position(0)
    eventually(lambda: cached(shards, tmp_path) == set(nearest(order, 0)[:3]), "three shards")


def test_complete_plan_lasts_for_the_long_interval(
    create_prefetcher: CreatePrefetcher, order: SampleOrder, shards: list[Shard], tmp_path: Path
) -> None:
    prefetcher, expected = create_prefetcher(SHARDS), planned(order, 0)
    assert prefetcher.update_position(0)
    eventually(lambda: cached(shards, tmp_path) == expected, "the first plan")
    assert not any(prefetcher.update_position(position) for position in range(LONG_INTERVAL))
    assert prefetcher.update_position(LONG_INTERVAL)


def test_plan_limited_by_the_budget_is_renewed_after_the_short_interval(
    create_prefetcher: CreatePrefetcher, order: SampleOrder, shards: list[Shard], tmp_path: Path
) -> None:
    prefetcher = create_prefetcher(1)
    assert prefetcher.update_position(0)
    eventually(lambda: len(cached(shards, tmp_path)) == 1, "the first plan")
    assert not prefetcher.update_position(SHORT_INTERVAL - 1)
    assert prefetcher.update_position(SHORT_INTERVAL)


def test_failed_downloads_are_retried_after_the_short_interval(
    create_prefetcher: CreatePrefetcher,
    order: SampleOrder,
    shards: list[Shard],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[str] = []

    def fail(storage: S3Storage, key: str, target: Path) -> None:
        attempts.append(key)
        raise OSError("no response")

    prefetcher, expected = create_prefetcher(SHARDS), planned(order, SHORT_INTERVAL)
    with monkeypatch.context() as outage:
        outage.setattr(S3Storage, "download", fail)
        prefetcher.update_position(0)
        eventually(lambda: len(attempts) == len(planned(order, 0)), "all downloads of the first plan")
    assert prefetcher.update_position(SHORT_INTERVAL)
    eventually(lambda: cached(shards, tmp_path) == expected, "the next plan, after the outage")


def test_nearest_shard_is_evicted_last(
    create_prefetcher: CreatePrefetcher, order: SampleOrder, shards: list[Shard], tmp_path: Path
) -> None:
    prefetcher, expected = create_prefetcher(SHARDS), planned(order, 0)
    prefetcher.update_position(0)
    eventually(lambda: cached(shards, tmp_path) == expected, "the first plan")
    files = [tmp_path / "cache" / shards[number].sha256 for number in nearest(order, 0) if number in expected]
    for file in files:
        os.utime(file, (0, 0))
    prefetcher.update_position(LONG_INTERVAL)
    next_shards = [number for number in nearest(order, LONG_INTERVAL) if number in expected][:STREAMS]
    near = [(tmp_path / "cache" / shards[number].sha256).stat for number in next_shards]
    eventually(lambda: near[0]().st_mtime > 0, "the nearest shard, which is touched last")
    times = [stat().st_mtime_ns for stat in near]
    assert times == sorted(set(times), reverse=True)
