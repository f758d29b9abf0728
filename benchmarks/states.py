"""A training state of a given size."""

from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from trainer.checkpoints import Progress, State

_LAYERS = 8
_SHARES = 3 * 4  # bytes of a parameter and of AdamW's two moments of it


class Layers(nn.Module):
    """Square matrices one after another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(_LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def state_of_size(mib: int, **more: Any) -> State:
    """With a step of AdamW behind it: weights and moments take `mib` MiB in fp32."""
    torch.manual_seed(0)
    model = Layers(isqrt(mib * 2**20 // _SHARES // _LAYERS))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step(model, optimizer, 1)
    return State(model=model, optimizer=optimizer, progress=Progress(), shape={"kind": "layers"}, **more)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int) -> None:
    """Forward, backward, update."""
    gradients(model, rows)
    optimizer.step()
    optimizer.zero_grad()


def gradients(model: nn.Module, rows: int) -> None:
    """Forward and backward on noise."""
    assert isinstance(model, Layers)
    model(torch.randn(rows, model.width)).backward()
