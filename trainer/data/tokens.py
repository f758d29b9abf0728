"""Text samples: windows of consecutive tokens. Each window is in one shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.data.cache import Cache
from trainer.data.counter_rng import IntArray
from trainer.data.masking import mask_tokens
from trainer.data.shards import MappedShards
from trainyard.models.dataset import Shard, TokenDataset

_READ_BYTES = 2 * 2**20  # size of the micro-batches to read in one call
_MAX_READ_SAMPLES = 128  # limit for short samples, so that they are not read far in advance


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Parameters of the task `masked`."""

    seed: int
    probability: float
    mask: int
    vocabulary: int
    end: int | None


class TokenSamples:
    """Windows of `length` + 1 tokens. The last token of a window, its last target, is the first of the next window."""

    def __init__(
        self, index: TokenDataset, listed: Sequence[Shard], cache: Cache, length: int, masking: Masking | None = None
    ) -> None:
        """`masking`: for the task masked; None: for the task causal."""
        self.counts = [max(0, (shard.count - 1) // length) for shard in listed]
        self.samples_per_read = min(_MAX_READ_SAMPLES, max(1, _READ_BYTES // (2 * 8 * length)))
        self.is_cheap = masking is None
        self.shards = MappedShards(listed, cache)
        self._dtype = np.dtype(index.dtype).newbyteorder("<")
        self._length, self._masking = length, masking

    def read(self, shards: IntArray, indices: IntArray, positions: IntArray) -> tuple[npt.NDArray[Any], ...]:
        """Return windows of tokens as they are stored, or masked tokens and their labels."""
        width, length = self._dtype.itemsize, self._length
        size, step = (length + 1) * width, length * width
        numbers = shards.tolist()
        content = {shard: self.shards[shard] for shard in set(numbers)}
        locations = zip(numbers, (indices * step).tolist(), strict=True)
        # One call copies all rows: one copy per row with NumPy is four times slower.
        rows = b"".join([content[shard][first : first + size] for shard, first in locations])
        windows = np.frombuffer(rows, dtype=self._dtype).reshape(len(shards), length + 1)
        if self._masking is None:
            return (windows,)  # `batch` converts them to int64: stored tokens are a half to an eighth as large
        masking = self._masking
        return mask_tokens(
            windows[:, :-1].astype(np.int64),
            positions,
            seed=masking.seed,
            probability=masking.probability,
            mask=masking.mask,
            vocabulary=masking.vocabulary,
            end=masking.end,
        )

    def batch(self, read: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Return tokens and their successors, or masked tokens and their labels: int64, (samples, length) each."""
        if self._masking is None:
            # Both are views of the same memory, which is written once.
            tokens = read[0].astype(np.int64)
            return torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, 1:])
        inputs, labels = read
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def close(self) -> None:
        """Close the shards."""
        self.shards.close()
