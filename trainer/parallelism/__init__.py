"""What is done to a model so that many ranks train it together."""

from torch import nn

from trainer.parallelism.passes import Accumulated, Passes, Pipelined
from trainer.parallelism.spread import spread
from trainer.precision import Precision
from trainer.ranks import Ranks
from trainyard.config.training import TrainerConfig

__all__ = ["Passes", "passes_of", "spread"]


def passes_of(module: nn.Module, config: TrainerConfig, ranks: Ranks, precision: Precision) -> Passes:
    """How the ranks make a step's gradients of a module that `spread` gave."""
    if ranks.layout.pipeline > 1:
        return Pipelined(module, config, ranks, precision)
    return Accumulated(module, ranks, precision)
