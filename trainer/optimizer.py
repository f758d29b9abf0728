"""The optimizers, AdamW or Muon with AdamW, and the schedules of the learning rate."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainer.models.model import Model
from trainer.muon import Muon
from trainyard.config.training.config import OptimizerConfig
from trainyard.errors import InputError, Problem


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices of hidden layers, and AdamW for all other parameters, with one state and list of groups."""

    def __init__(self, hidden: list[nn.Parameter], others: list[dict[str, Any]], config: OptimizerConfig) -> None:
        self._muon = Muon(
            hidden,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
        )
        self._adamw = _adamw(others, config)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})
        self._muon.state = self._adamw.state = self.state
        self._muon.param_groups, self._adamw.param_groups = self.param_groups[:1], self.param_groups[1:]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have gradients; none if the attribute `found_inf` is 1."""
        assert closure is None, "the gradients are computed before"
        if (found_inf := getattr(self, "found_inf", None)) is not None:
            self._muon.found_inf = self._adamw.found_inf = found_inf  # type: ignore[attr-defined]
        self._muon.step()
        self._adamw.step()


def build_optimizer(model: Model, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the parameters that are not frozen, with weight decay on matrices only.

    Muon is for the matrices in the blocks of the model, not for embedding and output layer. Raises InputError if there
    are none.
    """
    in_blocks = {id(parameter) for block in model.blocks.values() for parameter in block.parameters()}
    hidden: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in model.module.parameters():
        if not parameter.requires_grad:
            continue
        if config.kind == "muon" and id(parameter) in in_blocks and parameter.dim() == 2:
            hidden.append(parameter)
        else:
            (matrices if parameter.dim() >= 2 else vectors).append(parameter)
    groups = [
        {"params": group, "weight_decay": decay}
        for group, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if group
    ]
    if config.kind == "muon" and not hidden:
        reason, fix = "has no matrices to update: this model has no blocks, or they have no matrices", "Set it to adamw"
        raise InputError([Problem("config.optimizer.kind", config.kind, reason, fix, "muon_without_matrices")])
    return MuonWithAdamW(hidden, groups, config) if config.kind == "muon" else _adamw(groups, config)


def _adamw(groups: Iterable[dict[str, Any]], config: OptimizerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the learning rate of a step of `steps`: linear warm-up to the maximum, then the schedule.

    The schedule wsd is that of Hu et al., MiniCPM, arXiv 2404.06395, with linear decay.
    """
    warmup = min(10, steps // 10) if config.warmup_steps is None else config.warmup_steps
    if step <= warmup:
        return config.learning_rate * step / warmup
    span = config.learning_rate - config.last_learning_rate
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "wsd":
        decay = config.decay_steps or min(math.ceil(steps / 10), steps - warmup)
        return config.learning_rate - span * max(0.0, 1 - (steps - step) / decay)
    fraction = (step - warmup) / max(1, steps - warmup)
    return config.last_learning_rate + span * (1 + math.cos(math.pi * fraction)) / 2
