"""The AdamW optimizer and the schedules of its learning rate."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from trainyard.config.training.config import OptimizerConfig


def build_optimizer(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW of the parameters that are not frozen, with weight decay on matrices, not on gains and biases."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for parameter in trained if parameter.dim() < 2]
    groups = [
        {"params": group, "weight_decay": decay}
        for group, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if group
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the learning rate of a step of `steps`: linear warm-up to the maximum, then the schedule.

    The schedule wsd is that of Hu et al., MiniCPM, arXiv 2404.06395, with linear decay.
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    span = config.learning_rate - config.min_learning_rate
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "wsd":
        decay = config.decay_steps or math.ceil(steps / 10)
        return config.learning_rate - span * max(0.0, 1 - (steps - step) / decay)
    fraction = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    return config.min_learning_rate + span * (1 + math.cos(math.pi * fraction)) / 2
