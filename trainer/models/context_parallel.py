"""Context parallelism: each rank of a group has a part of every sequence, and gathers keys and values.

A sequence has 2 n chunks for n ranks. Rank i has the chunks i and 2 n - 1 - i, so that causal attention is the same
work on each rank: The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_single, all_reduce


@dataclass(frozen=True)
class ContextShard:
    """The shard of each sequence that a rank has.

    `group`: name of the process group in torch; `rank`: this rank in it; `ranks`: number of its ranks.
    """

    group: str
    rank: int
    ranks: int

    def chunks(self, length: int) -> tuple[tuple[int, int], ...]:
        """Return start and stop of this rank's chunks in a sequence of `length` tokens, in order."""
        size = length // (2 * self.ranks)
        return tuple((number * size, (number + 1) * size) for number in (self.rank, 2 * self.ranks - 1 - self.rank))

    def take(self, x: Tensor, dimension: int) -> Tensor:
        """Return this rank's chunks of a tensor with whole sequences along `dimension`."""
        chunks = self.chunks(x.size(dimension))
        return torch.cat([x.narrow(dimension, start, stop - start) for start, stop in chunks], dimension)

    def gather(self, x: Tensor) -> Tensor:
        """Return the whole sequences of all ranks' parts. x: (..., part, width); result: (..., length, width).

        The backward pass returns to each rank the sum of the gradients of its part.
        """
        *outer, part, width = x.shape
        halves = x.reshape(-1, 2, part // 2, width).transpose(0, 1).contiguous()  # (2, outer, chunk, width)
        gathered = all_gather_single(halves, 0, self.group).view(self.ranks, 2, *halves.shape[1:])
        chunks = torch.cat([gathered[:, 0], gathered[:, 1].flip(0)])  # (2 n, outer, chunk, width)
        return chunks.transpose(0, 1).reshape(*outer, self.ranks * part, width)

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the ranks of a tensor without gradients."""
        mean: Tensor = all_reduce(x, "sum", self.group) / self.ranks
        return mean
