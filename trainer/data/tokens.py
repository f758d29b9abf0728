"""Samples of text: windows of consecutive tokens, each in one shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.data.cache import Cache
from trainer.data.draws import Counts
from trainer.data.masking import mask
from trainer.data.shards import Shards
from trainyard.models.dataset import Shard, TokenDataset

_TOGETHER = 2 * 2**20  # bytes of micro-batches that are worth making at once
_AT_MOST = 128  # samples of them: short ones are not to be read far ahead of the training


@dataclass(frozen=True, kw_only=True)
class Masking:
    """What the task `masked` needs to know."""

    seed: int
    probability: float
    mask: int
    vocabulary: int
    end: int | None


class TokenSamples:
    """Windows of `length` + 1 tokens, of which neighbours share one: a sample's last token is what the one before it
    predicts, and the next one's first."""

    def __init__(
        self, index: TokenDataset, listed: Sequence[Shard], cache: Cache, length: int, masking: Masking | None = None
    ) -> None:
        """`masking`: for the task masked; None: for the task causal."""
        self.counts = [max(0, (shard.count - 1) // length) for shard in listed]
        self.together = min(_AT_MOST, max(1, _TOGETHER // (2 * 8 * length)))
        self.quick = masking is None
        self.shards = Shards(listed, cache)
        self._type = np.dtype(index.dtype).newbyteorder("<")
        self._length, self._masking = length, masking

    def read(self, shards: Counts, indices: Counts, positions: Counts) -> tuple[npt.NDArray[Any], ...]:
        """Windows of tokens as they are stored, or masked tokens and their labels."""
        width, length = self._type.itemsize, self._length
        size, step = (length + 1) * width, length * width
        numbers = shards.tolist()
        content = {shard: self.shards[shard] for shard in set(numbers)}
        places = zip(numbers, (indices * step).tolist(), strict=True)
        # All rows by one call: copied one by one through NumPy they take four times as long.
        rows = b"".join([content[shard][first : first + size] for shard, first in places])
        windows = np.frombuffer(rows, dtype=self._type).reshape(len(shards), length + 1)
        if self._masking is None:
            return (windows,)  # widened as they are taken: until then they are a quarter as large, or half
        own = self._masking
        return mask(
            windows[:, :-1].astype(np.int64),
            positions,
            seed=own.seed,
            probability=own.probability,
            mask=own.mask,
            vocabulary=own.vocabulary,
            end=own.end,
        )

    def batch(self, read: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Tokens and their successors, or masked tokens and their labels: int64, (samples, length) each."""
        if self._masking is None:
            # Views of one memory: what is written once need not be written twice.
            tokens = read[0].astype(np.int64)
            return torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, 1:])
        inputs, labels = read
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def close(self) -> None:
        self.shards.close()
