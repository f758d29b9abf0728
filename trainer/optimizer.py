"""The AdamW optimizer and its learning rate schedule."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from trainyard.config.training.config import OptimizerConfig


def build_optimizer(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only, not on gains and biases."""
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [
        {"params": group, "weight_decay": decay}
        for group, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if group
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the learning rate of a step: linear warmup to the maximum, then cosine decay to the minimum."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    fraction = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    span = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + span * (1 + math.cos(math.pi * fraction)) / 2
