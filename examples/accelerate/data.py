"""Samples of text as bytes, in an order that any number of ranks agrees on. The same file lies in each folder."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from storage import SCRATCH, fetch, keys
from torch import Tensor
from torch.utils.data import Dataset, Sampler

INDEX = "dataset.json"


def bring() -> list[Path]:
    """This node's copies of the shards that DATA_URI names; of Python's own sources where it is not set.

    One rank of a node calls it first, and the others find what that one has brought.
    """
    uri = os.environ.get("DATA_URI")
    if not uri:
        return sorted(Path(json.__file__).parents[1].glob("*.py"))
    if INDEX not in keys(uri):
        sys.exit(f"DATA_URI={uri}: holds no {INDEX}; upload a dataset, or set job.builtin_corpus to true")
    index = json.loads(fetch(uri, INDEX, SCRATCH / f"{os.getpid()}-{INDEX}").read_text())
    if (index.get("kind", "tokens"), index.get("dtype", "uint8")) != ("tokens", "uint8"):
        sys.exit(f"DATA_URI={uri}: this job reads tokens of dtype uint8, and {INDEX} names others")
    places = [(shard["key"], SCRATCH.parent / "shards" / shard["sha256"]) for shard in index["train"]]
    return [place if place.exists() else fetch(uri, key, place) for key, place in places]


class Samples(Dataset[Tensor]):
    """Pieces of length + 1 bytes: what is given, and what follows each. None crosses a shard."""

    def __init__(self, files: Sequence[Path], length: int) -> None:
        self.length = length
        self.shards = [np.memmap(file, dtype=np.uint8, mode="r") for file in files if file.stat().st_size > length]
        self.ends = np.cumsum([(len(shard) - 1) // length for shard in self.shards])
        if not self.shards:
            sys.exit(f"the data has no piece of {length + 1} bytes: give a smaller --length, or more data")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Tensor:
        shard = int(np.searchsorted(self.ends, index, side="right"))
        start = (index - (int(self.ends[shard - 1]) if shard else 0)) * self.length
        return torch.from_numpy(self.shards[shard][start : start + self.length + 1].astype(np.int64))


class Order(Sampler[int]):
    """Endless: each pass over the samples is a permutation of its own, the same in every run.

    It begins at the `consumed`-th sample, which is all that a run needs to know to go on where it was. Of the samples
    it takes those of one rank of `ranks`.
    """

    def __init__(self, size: int, consumed: int, rank: int = 0, ranks: int = 1) -> None:
        self.size, self.first, self.ranks = size, consumed + rank, ranks

    def __iter__(self) -> Iterator[int]:
        known, order = -1, torch.empty(0)
        position = self.first
        while True:
            turn, place = divmod(position, self.size)
            if turn != known:
                known, order = turn, torch.randperm(self.size, generator=torch.Generator().manual_seed(turn))
            yield int(order[place])
            position += self.ranks
