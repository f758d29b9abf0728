"""Held-out loss: on the same samples every time, by all ranks together."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from trainer.parallelism.passes import Batch, Passes
from trainer.ranks import Ranks


@torch.no_grad()
def held_out_loss(
    module: nn.Module, passes: Passes, batches: Iterator[Batch], number: int, ranks: Ranks, leaves: Callable[[], bool]
) -> float | None:
    """Mean over `number` batches of all ranks, nats a token (an image). None where a rank leaves it: each is
    asked at each batch."""
    total, own = 0.0, ranks.layout.accumulation
    module.eval()
    try:
        for _ in range(number):
            left = leaves()
            loss = passes.losses(batches, own)
            told = torch.stack([loss, torch.full_like(loss, left)])
            dist.all_reduce(told)
            batch_loss, any_left = told.tolist()
            if any_left:
                return None
            total += batch_loss / ranks.layout.loss_ranks
    finally:
        module.train()
    return total / number


@torch.no_grad()
def average_buffers(module: nn.Module, ranks: Ranks) -> None:
    """Running statistics, such as batch normalisation's, become the mean over the ranks, which keep one each."""
    kept = {id(each) for each in module.state_dict(keep_vars=True).values()}
    own = [each for each in module.buffers() if each.is_floating_point() and id(each) in kept]
    for buffer in own if ranks.layout.data > 1 else ():
        dist.all_reduce(buffer, group=ranks.sharers)
        buffer.div_(ranks.layout.data)
