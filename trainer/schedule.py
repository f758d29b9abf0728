"""AdamW, and its learning rate over the steps."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from trainyard.config.training.config import OptimizerConfig


def make_optimizer(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW whose weight decay spares vectors: gains and biases."""
    matrices = [each for each in parameters if each.dim() >= 2]
    vectors = [each for each in parameters if each.dim() < 2]
    groups = [
        {"params": each, "weight_decay": decay}
        for each, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if each
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Linear to the peak at the end of the warm-up, then half a cosine down to the minimum at the last step."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    span = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + span * (1 + math.cos(math.pi * done)) / 2
