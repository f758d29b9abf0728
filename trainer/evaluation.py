"""Validation loss over the same held-out samples each time, computed by all ranks."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from trainer.distributed import DistributedContext
from trainer.parallelism.forward_backward import Batch, ForwardBackward


@torch.no_grad()
def compute_validation_loss(
    module: nn.Module,
    forward_backward: ForwardBackward,
    batches: Iterator[Batch],
    count: int,
    distributed: DistributedContext,
    is_terminating: Callable[[], bool],
) -> float | None:
    """Return the mean loss over all targets of `count` batches of all ranks, in nats per token (per image).

    Returns None if any rank terminates: `is_terminating` is called on each rank at each batch.
    """
    total, targets, micro_batches = 0.0, 0.0, distributed.layout.accumulation
    module.eval()
    try:
        for _ in range(count):
            terminating = is_terminating()
            loss = forward_backward.compute_loss(batches, micro_batches)
            sums = torch.cat([loss, loss.new_full((1,), terminating)])
            dist.all_reduce(sums)
            batch_loss, share, any_terminating = sums.tolist()
            if any_terminating:
                return None
            total, targets = total + batch_loss, targets + share
    finally:
        module.train()
    return total / targets if targets else 0.0


@torch.no_grad()
def average_buffers(module: nn.Module, distributed: DistributedContext) -> None:
    """Replace running statistics, such as those of batch normalization, by their mean over the data-parallel ranks."""
    saved = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point() and id(buffer) in saved]
    group = distributed.gradient_group
    for buffer in buffers if group is not None else ():
        mean = buffer.clone()  # a lost peer interrupts the operation: the buffer remains valid
        dist.all_reduce(mean, group=group)
        buffer.copy_(mean.div_(dist.get_world_size(group)))
