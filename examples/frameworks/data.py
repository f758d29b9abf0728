"""Text samples as bytes, in an order that does not depend on the number of ranks."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from storage import SCRATCH, download, list_keys
from torch import Tensor
from torch.utils.data import Dataset, Sampler

INDEX = "dataset.json"


def download_shards() -> list[Path]:
    """Return this node's copies of the shards in DATA_URI, or Python's source files if DATA_URI is not set.

    Call it on one rank of a node first: the other ranks use the files that it has downloaded.
    """
    uri = os.environ.get("DATA_URI")
    if not uri:
        return sorted(Path(json.__file__).parents[1].glob("*.py"))
    if INDEX not in list_keys(uri):
        sys.exit(f"DATA_URI={uri}: contains no {INDEX}; upload a dataset, or set job.builtin_corpus to true")
    index = json.loads(download(uri, INDEX, SCRATCH / f"{os.getpid()}-{INDEX}").read_text())
    if (index.get("kind", "tokens"), index.get("dtype", "uint8")) != ("tokens", "uint8"):
        sys.exit(f"DATA_URI={uri}: this job requires tokens of dtype uint8, and {INDEX} has another kind or dtype")
    paths = [(shard["key"], SCRATCH.parent / "shards" / shard["sha256"]) for shard in index["train"]]
    return [path if path.exists() else download(uri, key, path) for key, path in paths]


class Samples(Dataset[Tensor]):
    """Sequences of length + 1 bytes: the inputs and their targets. No sequence spans two shards."""

    def __init__(self, files: Sequence[Path], length: int) -> None:
        self.length = length
        self.shards = [np.memmap(file, dtype=np.uint8, mode="r") for file in files if file.stat().st_size > length]
        self.ends = np.cumsum([(len(shard) - 1) // length for shard in self.shards])
        if not self.shards:
            sys.exit(f"no shard has {length + 1} bytes: decrease --length, or use more data")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Tensor:
        shard = int(np.searchsorted(self.ends, index, side="right"))
        start = (index - (int(self.ends[shard - 1]) if shard else 0)) * self.length
        return torch.from_numpy(self.shards[shard][start : start + self.length + 1].astype(np.int64))


class InfiniteShuffle(Sampler[int]):
    """Endless sampler: each epoch is another permutation of the samples, the same in every run.

    It starts at the `consumed`-th sample, which is the only state that a resumed run needs. It yields the samples of
    one rank of `ranks`.
    """

    def __init__(self, size: int, consumed: int, rank: int = 0, ranks: int = 1) -> None:
        self.size, self.first, self.ranks = size, consumed + rank, ranks

    def __iter__(self) -> Iterator[int]:
        current_epoch, order = -1, torch.empty(0)
        position = self.first
        while True:
            epoch, offset = divmod(position, self.size)
            if epoch != current_epoch:
                generator = torch.Generator().manual_seed(epoch)
                current_epoch, order = epoch, torch.randperm(self.size, generator=generator)
            yield int(order[offset])
            position += self.ranks
