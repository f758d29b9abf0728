"""Held-out loss: on the same samples every time, by all ranks together."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from trainer.parallelism.passes import Batch, Passes
from trainer.ranks import Ranks


@torch.no_grad()
def held_out_loss(module: nn.Module, passes: Passes, batches: Iterator[Batch], count: int, ranks: Ranks) -> float:
    """Mean over `count` micro-batches of each rank that shares the batch, nats a token (an image)."""
    module.eval()
    try:
        loss = passes.losses(batches, count)
    finally:
        module.train()
    dist.all_reduce(loss)
    return float(loss) / ranks.layout.loss_ranks


@torch.no_grad()
def average_buffers(module: nn.Module, ranks: Ranks) -> None:
    """Running statistics, such as batch normalisation's, become the mean over the ranks, which keep one each."""
    kept = {id(each) for each in module.state_dict(keep_vars=True).values()}
    own = [each for each in module.buffers() if each.is_floating_point() and id(each) in kept]
    for buffer in own if ranks.layout.data > 1 else ():
        dist.all_reduce(buffer, group=ranks.sharers)
        buffer.div_(ranks.layout.data)
