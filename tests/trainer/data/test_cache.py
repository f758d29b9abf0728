"""Shards on a node: brought once, checked, removed when room is needed and nobody uses them."""

import errno
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.polling import eventually
from tests.trainer.data.conftest import config, shard, write_tokens
from trainer.data import cache as caching
from trainer.data import open_data
from trainer.data.cache import Cache
from trainer.data.shards import Shards
from trainer.data.space import GIB, NoRoom, locked
from trainer.settings import Environment
from trainer.storage import S3Storage
from trainyard.base import InputError
from trainyard.models.dataset import Shard

SIZE = 1000


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    (tmp_path / "data").mkdir()
    return [shard(tmp_path / "data", f"{n}.bin", bytes([n]) * SIZE, SIZE) for n in range(4)]


@pytest.fixture
def cache(uploaded: Callable[[Path], str], shards: list[Shard], tmp_path: Path) -> Callable[[float], Cache]:
    """A cache in one folder of shards in S3, with room for so many."""
    uri = uploaded(tmp_path / "data")
    return lambda room: Cache(uri, "DATA_URI", tmp_path / "cache", room * SIZE)


def kept(tmp_path: Path, shards: list[Shard]) -> set[int]:
    return {number for number, one in enumerate(shards) if (tmp_path / "cache" / one.sha256).exists()}


def test_a_shard_is_brought_once_by_many_processes(
    cache: Callable[[float], Cache], shards: list[Shard], downloads: list[tuple[str, str]], tmp_path: Path
) -> None:
    caches = [pickle.loads(pickle.dumps(cache(4))) for _ in range(6)]

    def read(number: int) -> bytes:
        descriptor = caches[number].open(shards[number % 2])
        try:
            return os.read(descriptor, 2 * SIZE)
        finally:
            os.close(descriptor)

    with ThreadPoolExecutor(6) as threads:  # flock is by open file: threads stand for processes
        found = list(threads.map(read, range(6)))
    assert sorted(key for key, _ in downloads) == ["0.bin", "1.bin"]
    assert found == [bytes([number % 2]) * SIZE for number in range(6)]
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == sorted(one.sha256 for one in shards[:2])


def test_what_is_longest_unused_goes_and_never_what_is_in_use(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    used = cache(2.5).open(shards[0])
    other = cache(2.5)  # as another process
    other.ensure(shards[1])
    for age, one in enumerate(shards[:2]):
        os.utime(tmp_path / "cache" / one.sha256, (age, age))
    other.ensure(shards[2])
    assert kept(tmp_path, shards) == {0, 2}
    os.close(used)
    other.ensure(shards[3])
    assert kept(tmp_path, shards) == {2, 3}


def test_a_map_that_is_read_keeps_its_file_and_one_long_unread_does_not(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    own, other = Shards(shards, cache(2)), cache(2)
    assert bytes(own[0][:2]) == b"\0\0"
    assert bytes(own[1][:2]) == b"\1\1"
    with pytest.raises(NoRoom):
        other.ensure(shards[2])
    for _ in range(3000):
        own[0]
    other.ensure(shards[2])
    assert kept(tmp_path, shards) == {0, 2}


def test_room_is_made_by_letting_go_and_else_its_lack_is_told(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_PATIENCE", 0.3)
    own, foreign = cache(2).open(shards[0]), cache(2).open(shards[1])
    with pytest.raises(NoRoom, match=r"cache has no room .* data\.cache_gib"):
        cache(2).ensure(shards[2])
    with pytest.raises(NoRoom, match=r"cache has no room .* data\.cache_gib"):
        cache(2).open(shards[2], let_go=lambda: None)
    os.close(cache(2).open(shards[2], let_go=lambda: os.close(own)))
    os.close(foreign)
    assert kept(tmp_path, shards) == {1, 2}


def test_what_a_killed_process_left_is_cleared(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    for one in shards[:2]:  # its partial file, and the transfer's own
        (tmp_path / "cache" / f"{one.sha256}.partial").write_bytes(b"x" * SIZE)
        (tmp_path / "cache" / f"{one.sha256}.partial.Ab12").write_bytes(b"x")
    cache(2).ensure(shards[0])
    cache(2).ensure(shards[2])
    assert {file.name for file in (tmp_path / "cache").iterdir()} == {shards[0].sha256, shards[2].sha256}


def test_a_cached_shard_that_was_cut_short_is_brought_again(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    cache(4).ensure(shards[0])
    (tmp_path / "cache" / shards[0].sha256).write_bytes(b"")
    cache(4).ensure(shards[0])
    assert (tmp_path / "cache" / shards[0].sha256).stat().st_size == SIZE


@pytest.mark.parametrize(("content", "why"), [(b"y" * SIZE, "has SHA-256"), (b"y", "has 1 bytes, its index says 1000")])
def test_a_shards_wrong_content_is_told_and_not_kept(
    s3: Any, cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, content: bytes, why: str
) -> None:
    found = cache(4)
    bucket, _, prefix = found.storage.uri.removeprefix("s3://").partition("/")
    s3.put_object(Bucket=bucket, Key=f"{prefix}1.bin", Body=content)
    with pytest.raises(OSError, match=rf"1\.bin {why}"):
        found.open(shards[1], let_go=lambda: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_shard_that_is_not_there_is_told_at_once(
    s3: Any, cache: Callable[[float], Cache], shards: list[Shard]
) -> None:
    found = cache(4)
    bucket, _, prefix = found.storage.uri.removeprefix("s3://").partition("/")
    s3.delete_object(Bucket=bucket, Key=f"{prefix}1.bin")
    with pytest.raises(OSError, match=r"1\.bin is in the index and can't be read"):
        found.open(shards[1], let_go=lambda: None)


class Outage:
    """S3 that does not answer so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left = times
        original = S3Storage.download

        def download(storage: S3Storage, key: str, target: Path) -> None:
            if self.left:
                self.left -= 1
                raise OSError("no answer")
            original(storage, key, target)

        monkeypatch.setattr(S3Storage, "download", download)
        monkeypatch.setattr(caching, "_PAUSES", (0.01, 0.01, 0.01))


def test_an_outage_is_ridden_out(
    cache: Callable[[float], Cache], shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    Outage(monkeypatch, 3)
    os.close(cache(4).open(shards[0], let_go=lambda: None))


def test_a_lasting_outage_ends_in_one_clear_error(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(monkeypatch, 4)
    with pytest.raises(OSError, match=r"0\.bin can't be fetched after 0 s of tries: no answer"):
        cache(4).open(shards[0], let_go=lambda: None)
    assert outage.left == 0
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_is_fetched_ahead_does_not_wait_for_storage(
    cache: Callable[[float], Cache], shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(monkeypatch, 4)
    with pytest.raises(OSError, match="no answer"):
        cache(4).ensure(shards[0])
    assert outage.left == 3


def test_a_full_disk_is_told(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(storage: S3Storage, key: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(S3Storage, "download", full)
    with pytest.raises(OSError, match=r"cache is full\. Lower data\.cache_gib"):
        cache(4).open(shards[0], let_go=lambda: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_lock_is_held_alone_whoever_removes_its_file(tmp_path: Path) -> None:
    """Who waited on a file that its holder removed holds nothing: another may have made a new one."""
    path, release = tmp_path / "lock", threading.Event()
    entered = threading.Event()

    def wait() -> None:
        with locked(path):
            entered.set()
            release.wait(60)

    def waiting() -> bool:
        opened = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
        return opened.count(path) == 2

    waiter = threading.Thread(target=wait)
    with locked(path), locked(path, wait=False) as held:
        assert not held
        waiter.start()
        eventually(waiting, "the one who waits")
    assert entered.wait(60)
    with locked(path, wait=False) as held:
        assert not held
    release.set()
    waiter.join()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_read_in_place_and_its_content_checked(tmp_path: Path, shards: list[Shard]) -> None:
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache", SIZE / 2)
    cache.ensure(shards[0])
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".checked"]
    (tmp_path / "data/0.bin").write_bytes(b"z" * SIZE)
    with pytest.raises(OSError, match=r"0\.bin has SHA-256"):
        cache.ensure(shards[0])
    (tmp_path / "data/0.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.bin is not there, and its index names it"):
        cache.ensure(shards[0])


def first_tokens(at: Callable[..., Environment], uri: str, number: int, **data: Any) -> list[Any]:
    opened = open_data(config(data=data), at(uri), rank=0, ranks=1)
    try:
        return [batch[0].tolist() for batch in islice(opened.train(0), number)]
    finally:
        opened.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_training_from_s3_is_as_from_a_folder(
    at: Callable[..., Environment], uploaded: Callable[[Path], str], tmp_path: Path, workers: int
) -> None:
    write_tokens(tmp_path / "data")
    uri = uploaded(tmp_path / "data")
    expected = first_tokens(at, str(tmp_path / "data"), 150)
    assert first_tokens(at, uri, 150, workers=workers) == expected


def test_a_cache_smaller_than_what_is_shuffled_is_refused(
    at: Callable[..., Environment], uploaded: Callable[[Path], str], tmp_path: Path
) -> None:
    write_tokens(tmp_path / "data", [8 * 400 + 1] * 4, vocabulary=1000)
    uri = uploaded(tmp_path / "data")
    with pytest.raises(InputError, match=r"config\.data\.shuffle_block = 1000: a node shuffles 4 streams"):
        open_data(config(data={"shuffle_block": 1000, "cache_gib": 20_000 / GIB}), at(uri), rank=0, ranks=1)
    small = config(data={"shuffle_block": 8, "cache_gib": 30_000 / GIB, "streams": 2})
    opened = open_data(small, at(uri), rank=0, ranks=1)
    next(opened.train(0))
    opened.close()
