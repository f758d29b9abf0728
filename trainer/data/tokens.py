"""Text samples: windows of consecutive tokens, or rows of packed conversations. Each sample is in one shard."""

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
from trainyard.config.training.models import IGNORED
from trainyard.models.dataset import HAS_LOSS, STARTS_DOCUMENT, TOKEN_BITS, Shard, TokenDataset

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
    """Windows of `length` + 1 tokens. The last token of a window, its last target, is the first of the next window.

    Rows of packed conversations have `length` + 1 tokens, too, and share none.
    """

    def __init__(
        self,
        index: TokenDataset,
        listed: Sequence[Shard],
        cache: Cache,
        length: int,
        masking: Masking | None = None,
        *,
        separates_documents: bool = True,
    ) -> None:
        """`masking`: for the task masked; None: for the task causal.

        `separates_documents`: tokens do not attend to other documents, and the last token of a document has no target.
        """
        self._row_tokens, self._end = index.row_tokens, index.end
        self.separates_documents = separates_documents and (index.end is not None or index.row_tokens is not None)
        self._stride = length if index.row_tokens is None else index.row_tokens
        self.counts = [max(0, (shard.count - (length + 1 - self._stride)) // self._stride) for shard in listed]
        self.samples_per_read = min(_MAX_READ_SAMPLES, max(1, _READ_BYTES // (2 * 8 * length)))
        self.is_cheap = masking is None
        self.shards = MappedShards(listed, cache)
        self._dtype = np.dtype(index.dtype).newbyteorder("<")
        self._length, self._masking = length, masking

    def read(self, shards: IntArray, indices: IntArray, positions: IntArray) -> tuple[npt.NDArray[Any], ...]:
        """Return windows of tokens as they are stored, or masked tokens and their labels."""
        width, length = self._dtype.itemsize, self._length
        size, step = (length + 1) * width, self._stride * width
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

    def batch(self, read: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Return tokens and their targets, or masked tokens and their labels: int64, (samples, length) each.

        Rows of packed conversations also have the first tokens of the conversations: bool, (samples, length).
        """
        if self._masking is not None:
            inputs, labels = read
            return torch.from_numpy(inputs), torch.from_numpy(labels)
        if self._row_tokens is not None:
            return _unpack(read[0])
        # Both are views of the same memory, which is written once.
        tokens = read[0].astype(np.int64)
        targets = tokens[:, 1:]
        if self.separates_documents and (ends := tokens[:, :-1] == self._end).any():
            targets = np.where(ends, IGNORED, targets)
        return torch.from_numpy(tokens[:, :-1]), torch.from_numpy(targets)

    def complete(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return a micro-batch with its documents (`cu_seqlens`), if a sequence has several."""
        tokens, targets = batch[:2]
        if not self.separates_documents:
            return tokens, targets
        if self._row_tokens is not None:
            first = batch[2].numpy().copy()
        else:
            # Masking may have replaced a token by that at the end of documents; the label is the original.
            original = tokens if self._masking is None else torch.where(targets == IGNORED, tokens, targets)
            first = np.zeros(tokens.shape, dtype=bool)
            first[:, 1:] = original[:, :-1].numpy() == self._end
        first[:, 0] = True
        if np.count_nonzero(first) == len(first):
            return tokens, targets
        starts = np.flatnonzero(first).astype(np.int32)
        return tokens, targets, torch.from_numpy(np.append(starts, np.int32(first.size)))

    def close(self) -> None:
        """Close the shards."""
        self.shards.close()


def _unpack(rows: npt.NDArray[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, targets and first tokens of conversations, of rows with flags (trainyard/models/dataset.py)."""
    values = rows.astype(np.int64)
    tokens = values & TOKEN_BITS
    targets = np.where(values[:, 1:] & HAS_LOSS, tokens[:, 1:], IGNORED)
    first = (values[:, :-1] & STARTS_DOCUMENT) != 0
    return torch.from_numpy(tokens[:, :-1]), torch.from_numpy(targets), torch.from_numpy(first)
