"""What is fetched before it is needed: all there is room for, the nearest first, and for no more work than it takes."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.polling import eventually
from tests.trainer.data.conftest import config, shard, write_tokens
from trainer.data import open_data
from trainer.data.ahead import Ahead
from trainer.data.cache import Cache
from trainer.data.order import Order
from trainer.settings import Environment
from trainer.storage import S3Storage
from trainyard.models.dataset import Shard

SIZE, SHARDS, STREAMS, BLOCK = 1000, 24, 4, 2000
SELDOM, OFTEN = STREAMS * BLOCK // 4, BLOCK // 2  # positions after which a plan is made anew
Opened = Callable[..., Ahead]


@pytest.fixture
def order() -> Order:
    return Order([SIZE] * SHARDS, seed=1, streams=STREAMS, block=BLOCK)


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    (tmp_path / "data").mkdir()
    return [shard(tmp_path / "data", f"{number}.bin", bytes([number]) * SIZE, SIZE) for number in range(SHARDS)]


@pytest.fixture
def opened(uploaded: Callable[[Path], str], shards: list[Shard], order: Order, tmp_path: Path) -> Iterator[Opened]:
    """One rank's, with a budget of so many shards."""
    cache = Cache(uploaded(tmp_path / "data"), "DATA_URI", tmp_path / "cache", SHARDS * SIZE)
    made = []

    def make(budget: float) -> Ahead:
        streams = range(STREAMS)
        made.append(Ahead(cache, order, shards, rank=0, ranks=1, streams=streams, budget=budget * SIZE))
        return made[-1]

    yield make
    for each in made:
        each.close()


def nearest(order: Order, position: int) -> list[int]:
    """Shards in the order in which training comes to them."""
    return list(dict.fromkeys(order.locate(range(position, position + order.size))[0].tolist()))


def planned(order: Order, position: int) -> set[int]:
    return {piece.shard for piece in order.ahead(position, range(STREAMS))}


def there(shards: Sequence[Shard], tmp_path: Path) -> set[int]:
    return {number for number, each in enumerate(shards) if (tmp_path / "cache" / each.sha256).exists()}


def test_shards_come_before_they_are_needed(
    at: Callable[..., Environment],
    uploaded: Callable[[Path], str],
    downloads: list[tuple[str, str]],
    tmp_path: Path,
) -> None:
    """Those of the present blocks and the next, and those to hold out, while training stands at its first sample."""
    index = write_tokens(tmp_path / "data", [8 * 40 + 1] * 30, vocabulary=1000)
    uri = uploaded(tmp_path / "data")
    data = open_data(config(data={"shuffle_block": 128}), at(uri), rank=0, ranks=1)
    batches = data.train(0)
    next(batches)
    held_out = tmp_path / "cache" / index.validation[0].sha256
    eventually(lambda: held_out.exists() and len(downloads) > 10, "what is ahead")
    while len(downloads) < 29:  # training goes on, and what it needs is there
        began = len(downloads)
        for _ in range(128):
            next(batches)
        eventually(lambda: len(downloads) > began or len(downloads) >= 29, "the next shards")  # noqa: B023
    data.close()
    assert [key for key, thread in downloads if not thread.startswith("ahead-")][4:] == []


def test_the_nearest_come_as_far_as_the_budget_goes(
    opened: Opened, order: Order, shards: list[Shard], tmp_path: Path
) -> None:
    opened(3).moved(0)
    eventually(lambda: there(shards, tmp_path) == set(nearest(order, 0)[:3]), "three shards")


def test_a_plan_that_is_there_lasts(opened: Opened, order: Order, shards: list[Shard], tmp_path: Path) -> None:
    ahead, expected = opened(SHARDS), planned(order, 0)
    assert ahead.moved(0)
    eventually(lambda: there(shards, tmp_path) == expected, "the first plan")
    assert not any(ahead.moved(position) for position in range(SELDOM))
    assert ahead.moved(SELDOM)


def test_a_plan_that_the_budget_ended_is_made_anew_sooner(
    opened: Opened, order: Order, shards: list[Shard], tmp_path: Path
) -> None:
    ahead = opened(1)
    assert ahead.moved(0)
    eventually(lambda: len(there(shards, tmp_path)) == 1, "the first plan")
    assert not ahead.moved(OFTEN - 1)
    assert ahead.moved(OFTEN)


def test_what_could_not_be_had_is_asked_for_sooner(
    opened: Opened, order: Order, shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def away(storage: S3Storage, key: str, target: Path) -> None:
        tried.append(key)
        raise OSError("no answer")

    ahead, expected = opened(SHARDS), planned(order, OFTEN)
    with monkeypatch.context() as outage:
        outage.setattr(S3Storage, "download", away)
        ahead.moved(0)
        eventually(lambda: len(tried) == len(planned(order, 0)), "all of the first plan")
    assert ahead.moved(OFTEN)
    eventually(lambda: there(shards, tmp_path) == expected, "the next plan, now that storage is back")


def test_the_nearest_is_the_last_to_go(opened: Opened, order: Order, shards: list[Shard], tmp_path: Path) -> None:
    ahead, expected = opened(SHARDS), planned(order, 0)
    ahead.moved(0)
    eventually(lambda: there(shards, tmp_path) == expected, "the first plan")
    files = [tmp_path / "cache" / shards[number].sha256 for number in nearest(order, 0) if number in expected]
    for file in files:
        os.utime(file, (0, 0))
    ahead.moved(SELDOM)
    soon = [number for number in nearest(order, SELDOM) if number in expected][:STREAMS]
    near = [(tmp_path / "cache" / shards[number].sha256).stat for number in soon]
    eventually(lambda: near[0]().st_mtime > 0, "the nearest, which is touched last")
    times = [stat().st_mtime_ns for stat in near]
    assert times == sorted(set(times), reverse=True)
