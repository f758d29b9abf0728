"""Token shards as training samples, in an order that is a pure function of (seed, consumed).

Nothing of the order is kept: no sampler state, no permutation. Sample k of a run is the same on any number of ranks.
"""

import fcntl
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from torch import Tensor

from contract.base import InputError, Problem, problems_of
from contract.dataset import INDEX, DatasetIndex, Shard
from trainer.storage import Storage, open_storage

Positions = npt.NDArray[np.uint64]
_ROUNDS = 6


def _mix(x: Positions) -> Positions:
    """splitmix64's finalizer: 64 bits in, 64 well-stirred bits out."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def order(seed: int, positions: Sequence[int] | range, size: int) -> list[int]:
    """Which of `size` samples stands at each of `positions` (counted from 0, over all epochs).

    Every epoch is another permutation: a Feistel network over the next power of four, walked until it lands inside.
    """
    counted = np.asarray(positions, dtype=np.uint64)
    epochs, places = counted // np.uint64(size), counted % np.uint64(size)
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = [_mix(_mix(epochs + np.uint64(seed % 2**64)) + np.uint64(turn)) for turn in range(_ROUNDS)]
    outside = np.ones(len(places), dtype=bool)
    while outside.any():
        left, right = places[outside] >> half, places[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key[outside]) & mask)
        places[outside] = (left << half) | right
        outside = places >= size
    return [int(place) for place in places]


def share(consumed: int, rank: int, world_size: int, micro_batch: int, batch: int) -> list[range]:
    """Positions of one rank's micro-batches in the step that begins at `consumed`; `batch` counts all ranks'."""
    starts = range(consumed + rank * micro_batch, consumed + batch, world_size * micro_batch)
    return [range(start, start + micro_batch) for start in starts]


class Tokens:
    """Samples of `length` tokens and their successors, cut from shards side by side. No sample crosses a shard."""

    def __init__(self, files: Sequence[Path], length: int, seed: int) -> None:
        self._shards = [np.memmap(file, dtype=np.uint8, mode="r") for file in files]
        self._ends = np.cumsum([(len(shard) - 1) // length for shard in self._shards])
        self._length, self._seed = length, seed

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, positions: range, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens and successors, (samples, length) each, of the samples at these positions of the order."""
        rows = np.stack([self._sample(index) for index in order(self._seed, positions, len(self))])
        tokens = torch.from_numpy(rows).to(device).long()
        return tokens[:, :-1], tokens[:, 1:]

    def _sample(self, index: int) -> npt.NDArray[np.uint8]:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        within = index - (int(self._ends[shard - 1]) if shard else 0)
        return self._shards[shard][within * self._length : (within + 1) * self._length + 1]


def open_dataset(uri: str, cache: Path, *, length: int, vocabulary: int, seed: int) -> tuple[Tokens, Tokens]:
    """Training and held-out samples of the dataset at `uri`, whose shards are brought to `cache` first.

    Raises InputError where there is no dataset, or none that fits, and OSError where a shard belies its index.
    """
    storage = open_storage(uri, "DATA_URI")
    storage.require()
    index = _read_index(storage)
    if index.vocabulary > vocabulary:
        why = f"has {index.vocabulary} token ids, and the model only {vocabulary}"
        raise _no_data(storage, why, "Raise model.vocabulary")
    train, held_out = (
        Tokens([_fetch(storage, shard, cache) for shard in shards], length, seed)
        for shards in (index.train, index.validation)
    )
    if not len(train) or not len(held_out):
        why = f"has no sample of {length + 1} tokens to train on and to hold out"
        raise _no_data(storage, why, "Shorten model.sequence_length, or take more data")
    return train, held_out


def _read_index(storage: Storage) -> DatasetIndex:
    content = storage.read(INDEX)
    if content is None:
        raise _no_data(storage, f"holds no {INDEX}", "Upload the dataset first")
    try:
        return DatasetIndex.model_validate_json(content)
    except ValidationError as error:
        raise InputError(problems_of(error, "dataset", storage.uri + INDEX)) from None


def _no_data(storage: Storage, why: str, fix: str) -> InputError:
    return InputError([Problem(key=storage.name, value=storage.uri, why=why, fix=fix)])


def _fetch(storage: Storage, shard: Shard, cache: Path) -> Path:
    """The shard's copy on this node, named by its content. Of several processes one downloads, the others wait."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = cache / shard.sha256
    with (cache / f"{shard.sha256}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = cache / f"{shard.sha256}.partial"
            storage.download(shard.key, partial)
            with partial.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != shard.sha256:
                partial.unlink()
                raise OSError(f"{storage.uri}{shard.key} has SHA-256 {found}, its index says {shard.sha256}")
            partial.rename(target)
    return target
