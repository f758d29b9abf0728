"""The order of samples: a pure function of (seed, consumed), the same on any number of ranks."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.base import InputError
from contract.dataset import INDEX
from trainer.data import Tokens, open_dataset, order, share
from trainer.storage import Folder


def consumed_by(world_size: int, steps: int, batch: int = 8, micro_batch: int = 2) -> list[set[int]]:
    """Positions of each step, over all ranks; each is met once or the test fails."""
    found = []
    for step in range(steps):
        shares = [share(step * batch, rank, world_size, micro_batch, batch) for rank in range(world_size)]
        positions = [position for ranges in shares for each in ranges for position in each]
        assert len(positions) == len(set(positions)) == batch
        found.append(set(positions))
    return found


def test_ranks_share_each_step_without_overlap_or_loss() -> None:
    expected = [set(range(8 * step, 8 * step + 8)) for step in range(5)]
    assert [consumed_by(world_size, 5) for world_size in (1, 2, 4)] == [expected] * 3


@pytest.mark.parametrize("size", [1, 2, 5, 64, 1000, 4097])
def test_each_epoch_is_a_permutation(size: int) -> None:
    for epoch in range(3):
        assert sorted(order(7, range(epoch * size, (epoch + 1) * size), size)) == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    first, second = order(7, range(1000), 1000), order(7, range(1000, 2000), 1000)
    assert first != second
    assert first != order(8, range(1000), 1000)
    assert first == [order(7, range(at, at + 1), 1000)[0] for at in range(1000)]


def test_order_is_well_mixed() -> None:
    """Neighbours in the order are no neighbours in the text, and no part of it comes early."""
    found = np.array(order(3, range(4096), 4096))
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(4096), found)[0, 1]) < 0.05
    assert np.mean(np.abs(np.diff(found)) < 16) < 0.02


def test_samples_cover_each_shard_and_do_not_cross(tmp_path: Path) -> None:
    for name, values in {"a": range(10), "b": range(100, 107)}.items():
        (tmp_path / name).write_bytes(bytes(values))
    tokens = Tokens([tmp_path / "a", tmp_path / "b"], 3, seed=1)
    assert len(tokens) == 5
    found, successors = tokens.batch(range(5), torch.device("cpu"))
    assert sorted(found.tolist()) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [100, 101, 102], [103, 104, 105]]
    assert torch.equal(successors, found + 1)


def test_a_shard_is_downloaded_once_by_many_processes(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = []
    original = Folder.download

    def counted(self: Folder, key: str, target: Path) -> None:
        downloads.append(key)
        original(self, key, target)

    monkeypatch.setattr(Folder, "download", counted)
    with ThreadPoolExecutor(4) as threads:  # flock is by open file: threads stand for processes
        opened = list(threads.map(lambda _: fetch(dataset, tmp_path), range(4)))
    assert sorted(downloads) == ["a.bin", "b.bin", "held-out.bin"]
    assert {len(train) for train, _ in opened} == {30_000 // 32 + 20_000 // 32 - 1}


def fetch(dataset: Path, cache: Path, **changes: Any) -> tuple[Tokens, Tokens]:
    given: dict[str, Any] = {"length": 32, "vocabulary": 256, "seed": 1} | changes
    return open_dataset(str(dataset), cache, **given)


@pytest.fixture
def spoilt(dataset: Path, tmp_path: Path) -> Path:
    """A copy of the dataset whose second shard has lost a byte to another."""
    copy = tmp_path / "spoilt"
    copy.mkdir()
    for file in dataset.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    content = bytearray((copy / "b.bin").read_bytes())
    content[100] ^= 1
    (copy / "b.bin").write_bytes(content)
    return copy


def test_a_spoilt_shard_is_refused_and_not_kept(spoilt: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(OSError, match=r"b\.bin has SHA-256"):
        fetch(spoilt, cache)
    wrong = hashlib.sha256((spoilt / "b.bin").read_bytes()).hexdigest()
    right = [shard["sha256"] for shard in json.loads((spoilt / INDEX).read_text())["train"]]
    kept = {file.name for file in cache.iterdir() if "." not in file.name}
    assert kept == {right[0]}
    assert wrong not in kept


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"length": 50_000}, "has no sample of 50001 tokens"), ({"vocabulary": 100}, "has 256 token ids")],
)
def test_data_that_do_not_fit_the_model_are_refused(
    dataset: Path, tmp_path: Path, changes: dict[str, int], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        fetch(dataset, tmp_path, **changes)


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no dataset\.json"):
        fetch(tmp_path, tmp_path / "cache")
