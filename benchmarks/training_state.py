"""A training state of a given size."""

from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from trainer.checkpoints import Progress, State

_LAYERS = 8
_BYTES_PER_PARAMETER = 3 * 4  # of the parameter and its two AdamW moments


class Layers(nn.Module):
    """A sequence of linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(_LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def state_of_size(mib: int, *, sharded: bool = False, **arguments: Any) -> State:
    """Return the state after one AdamW step; weights and moments take `mib` MiB in fp32.

    sharded: with the shards of FSDP over all ranks.
    """
    torch.manual_seed(0)
    model = Layers(isqrt(mib * 2**20 // _BYTES_PER_PARAMETER // _LAYERS))
    if sharded:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step(model, optimizer, 1)
    return State(model=model, optimizer=optimizer, progress=Progress(), shape={"kind": "layers"}, **arguments)


def content_of(state: State) -> dict[str, Any]:
    """Return the tensors and values of a state, as DCP saves and loads them."""
    return {**state.tensors(), **state.values()}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int) -> None:
    """Run one training step."""
    compute_gradients(model, rows)
    optimizer.step()
    optimizer.zero_grad()


def compute_gradients(model: nn.Module, rows: int) -> None:
    """Compute gradients on random data."""
    assert isinstance(model, Layers)
    model(torch.randn(rows, model.width)).backward()
