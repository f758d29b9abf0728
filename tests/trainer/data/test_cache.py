"""The shard cache of a node: one download per shard, verification, and eviction of unused shards."""

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
from tests.problems import rejects
from tests.trainer.data.conftest import config, write_shard, write_tokens
from trainer.data import cache as caching
from trainer.data import open_data
from trainer.data.cache import Cache
from trainer.data.disk_space import GIB, CacheFullError, file_lock
from trainer.data.shards import MappedShards
from trainer.settings import Environment
from trainer.storage import S3Storage
from trainyard.models.dataset import Shard

SIZE = 1000


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    (tmp_path / "data").mkdir()
    return [write_shard(tmp_path / "data", f"{n}.bin", bytes([n]) * SIZE, SIZE) for n in range(4)]


@pytest.fixture
def cache(uploaded: Callable[[Path], str], shards: list[Shard], tmp_path: Path) -> Callable[[float], Cache]:
    """Creates caches of shards in S3, with a common folder and a limit of a number of shards."""
    uri = uploaded(tmp_path / "data")
    return lambda limit: Cache(uri, "DATA_URI", tmp_path / "cache", limit * SIZE)


def cached(tmp_path: Path, shards: list[Shard]) -> set[int]:
    return {number for number, shard in enumerate(shards) if (tmp_path / "cache" / shard.sha256).exists()}


def test_shard_is_downloaded_once_for_many_processes(
    cache: Callable[[float], Cache], shards: list[Shard], downloads: list[tuple[str, str]], tmp_path: Path
) -> None:
    caches = [pickle.loads(pickle.dumps(cache(4))) for _ in range(6)]

    def read(number: int) -> bytes:
        descriptor = caches[number].open(shards[number % 2])
        try:
            return os.read(descriptor, 2 * SIZE)
        finally:
            os.close(descriptor)

    with ThreadPoolExecutor(6) as threads:  # flock belongs to the open file: threads behave as processes
        contents = list(threads.map(read, range(6)))
    assert sorted(key for key, _ in downloads) == ["0.bin", "1.bin"]
    assert contents == [bytes([number % 2]) * SIZE for number in range(6)]
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == sorted(shard.sha256 for shard in shards[:2])


def test_lru_shard_is_evicted_unless_it_is_in_use(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    used = cache(2.5).open(shards[0])
    other = cache(2.5)  # as another process
    other.ensure_cached(shards[1])
    for age, shard in enumerate(shards[:2]):
        os.utime(tmp_path / "cache" / shard.sha256, (age, age))
    other.ensure_cached(shards[2])
    assert cached(tmp_path, shards) == {0, 2}
    os.close(used)
    other.ensure_cached(shards[3])
    assert cached(tmp_path, shards) == {2, 3}


def test_recently_read_map_keeps_its_file_and_idle_map_does_not(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    mapped, other = MappedShards(shards, cache(2)), cache(2)
    assert bytes(mapped[0][:2]) == b"\0\0"
    assert bytes(mapped[1][:2]) == b"\1\1"
    with pytest.raises(CacheFullError):
        other.ensure_cached(shards[2])
    for _ in range(3000):
        mapped[0]
    other.ensure_cached(shards[2])
    assert cached(tmp_path, shards) == {0, 2}


def test_full_cache_calls_release_or_raises_cache_full_error(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_SPACE_TIMEOUT_SECONDS", 0.3)
    local, other = cache(2).open(shards[0]), cache(2).open(shards[1])
    with pytest.raises(CacheFullError, match=r"cache has no space .* data\.cache_gib"):
        cache(2).ensure_cached(shards[2])
    with pytest.raises(CacheFullError, match=r"cache has no space .* data\.cache_gib"):
        cache(2).open(shards[2], release=lambda: None)
    os.close(cache(2).open(shards[2], release=lambda: os.close(local)))
    os.close(other)
    assert cached(tmp_path, shards) == {1, 2}


def test_partial_files_of_a_killed_process_are_removed(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    for shard in shards[:2]:  # its partial file, and a temporary file of the transfer
        (tmp_path / "cache" / f"{shard.sha256}.partial").write_bytes(b"x" * SIZE)
        (tmp_path / "cache" / f"{shard.sha256}.partial.Ab12").write_bytes(b"x")
    cache(2).ensure_cached(shards[0])
    cache(2).ensure_cached(shards[2])
    assert {file.name for file in (tmp_path / "cache").iterdir()} == {shards[0].sha256, shards[2].sha256}


def test_truncated_shard_is_downloaded_again(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path
) -> None:
    cache(4).ensure_cached(shards[0])
    (tmp_path / "cache" / shards[0].sha256).write_bytes(b"")
    cache(4).ensure_cached(shards[0])
    assert (tmp_path / "cache" / shards[0].sha256).stat().st_size == SIZE


@pytest.mark.parametrize(
    ("content", "reason"), [(b"y" * SIZE, "has SHA-256"), (b"y", "has 1 bytes, its index has 1000")]
)
def test_shard_with_wrong_content_raises_and_is_not_kept(
    s3: Any, cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, content: bytes, reason: str
) -> None:
    opened = cache(4)
    bucket, _, prefix = opened.storage.uri.removeprefix("s3://").partition("/")
    s3.put_object(Bucket=bucket, Key=f"{prefix}1.bin", Body=content)
    with pytest.raises(OSError, match=rf"1\.bin {reason}"):
        opened.open(shards[1], release=lambda: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_missing_shard_raises_without_retries(s3: Any, cache: Callable[[float], Cache], shards: list[Shard]) -> None:
    opened = cache(4)
    bucket, _, prefix = opened.storage.uri.removeprefix("s3://").partition("/")
    s3.delete_object(Bucket=bucket, Key=f"{prefix}1.bin")
    with pytest.raises(OSError, match=r"1\.bin is in the index and can't be read"):
        opened.open(shards[1], release=lambda: None)


class Outage:
    """Makes the next `count` downloads fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.remaining = count
        original = S3Storage.download

        def download(storage: S3Storage, key: str, target: Path) -> None:
            if self.remaining:
                self.remaining -= 1
                raise OSError("no response")
            original(storage, key, target)

        monkeypatch.setattr(S3Storage, "download", download)
        monkeypatch.setattr(caching, "_RETRY_PAUSES_SECONDS", (0.01, 0.01, 0.01))


def test_download_succeeds_after_a_short_outage(
    cache: Callable[[float], Cache], shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    Outage(monkeypatch, 3)
    os.close(cache(4).open(shards[0], release=lambda: None))


def test_long_outage_raises_one_error(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(monkeypatch, 4)
    with pytest.raises(OSError, match=r"0\.bin can't be downloaded after 0 s of retries: no response"):
        cache(4).open(shards[0], release=lambda: None)
    assert outage.remaining == 0
    assert list((tmp_path / "cache").iterdir()) == []


def test_prefetch_does_not_wait_for_unavailable_storage(
    cache: Callable[[float], Cache], shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(monkeypatch, 4)
    with pytest.raises(OSError, match="no response"):
        cache(4).ensure_cached(shards[0])
    assert outage.remaining == 3


def test_full_disk_raises_with_the_setting_to_change(
    cache: Callable[[float], Cache], shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(storage: S3Storage, key: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(S3Storage, "download", full)
    with pytest.raises(OSError, match=r"cache is full\. Lower data\.cache_gib"):
        cache(4).open(shards[0], release=lambda: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_file_lock_is_exclusive_when_its_file_is_removed(tmp_path: Path) -> None:
    """A lock on a file that its holder has removed is void, because another process may have created the file again."""
    path, release = tmp_path / "lock", threading.Event()
    entered = threading.Event()

    def wait() -> None:
        with file_lock(path):
            entered.set()
            release.wait(60)

    def waiting() -> bool:
        opened = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
        return opened.count(path) == 2

    waiter = threading.Thread(target=wait)
    with file_lock(path), file_lock(path, wait=False) as held:
        assert not held
        waiter.start()
        eventually(waiting, "the waiting thread")
    assert entered.wait(60)
    with file_lock(path, wait=False) as held:
        assert not held
    release.set()
    waiter.join()
    assert list(tmp_path.iterdir()) == []


def test_folder_is_read_in_place_and_its_content_is_verified(tmp_path: Path, shards: list[Shard]) -> None:
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache", SIZE / 2)
    cache.ensure_cached(shards[0])
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".checked"]
    (tmp_path / "data/0.bin").write_bytes(b"z" * SIZE)
    with pytest.raises(OSError, match=r"0\.bin has SHA-256"):
        cache.ensure_cached(shards[0])
    (tmp_path / "data/0.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.bin does not exist, but the index lists it"):
        cache.ensure_cached(shards[0])


def first_tokens(environment_for: Callable[..., Environment], uri: str, number: int, **data: Any) -> list[Any]:
    opened = open_data(config(data=data), environment_for(uri), rank=0, ranks=1)
    try:
        return [batch[0].tolist() for batch in islice(opened.train_batches(0), number)]
    finally:
        opened.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_training_from_s3_equals_training_from_a_folder(
    environment_for: Callable[..., Environment], uploaded: Callable[[Path], str], tmp_path: Path, workers: int
) -> None:
    write_tokens(tmp_path / "data")
    uri = uploaded(tmp_path / "data")
    expected = first_tokens(environment_for, str(tmp_path / "data"), 150)
    assert first_tokens(environment_for, uri, 150, workers=workers) == expected


def test_cache_smaller_than_the_shuffle_blocks_is_rejected(
    environment_for: Callable[..., Environment], uploaded: Callable[[Path], str], tmp_path: Path
) -> None:
    write_tokens(tmp_path / "data", [8 * 400 + 1] * 4, vocabulary=1000)
    uri = uploaded(tmp_path / "data")
    with rejects("cache_too_small", "config.data.shuffle_block_samples = 1000"):
        open_data(
            config(data={"shuffle_block_samples": 1000, "cache_gib": 20_000 / GIB}),
            environment_for(uri),
            rank=0,
            ranks=1,
        )
    small = config(data={"shuffle_block_samples": 8, "cache_gib": 30_000 / GIB, "streams": 2})
    opened = open_data(small, environment_for(uri), rank=0, ranks=1)
    next(opened.train_batches(0))
    opened.close()
