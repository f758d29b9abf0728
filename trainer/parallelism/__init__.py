"""Data, tensor, context, expert and pipeline parallelism of a model over all ranks."""

from torch import nn

from trainer.distributed import DistributedContext
from trainer.parallelism.forward_backward import (
    AccumulatedForwardBackward,
    ForwardBackward,
    PipelinedForwardBackward,
)
from trainer.parallelism.parallelize import parallelize, wrap_in_ddp
from trainer.precision import Precision
from trainyard.config.training import TrainerConfig

__all__ = ["ForwardBackward", "build_forward_backward", "parallelize", "wrap_in_ddp"]


def build_forward_backward(
    module: nn.Module, config: TrainerConfig, distributed: DistributedContext, precision: Precision
) -> ForwardBackward:
    """Return the forward and backward passes of a module that `wrap_in_ddp` returned."""
    if distributed.layout.pipeline > 1:
        return PipelinedForwardBackward(module, config, distributed, precision)
    reduces_per_step = config.parallel.reduce_per_step
    return AccumulatedForwardBackward(module, distributed, precision, reduces_per_step=reduces_per_step)
