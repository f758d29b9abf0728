"""A tiny model with an optimizer, and where checkpoints of it lie."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.checkpoints import Checkpoints, Progress, State
from trainyard.config.training.config import CheckpointConfig

SHAPE = {"kind": "decoder", "dim": 8, "layers": 2}


class Block(nn.Module):
    """Two matrices and a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return out


class Net(nn.Module):
    """`blocks` says which of them this rank has; names are those of the whole."""

    def __init__(self, width: int = 8, blocks: tuple[int, ...] = (0, 1)) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(number): Block(width) for number in blocks})
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x.square().mean()


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, width: int) -> None:
    """A step of training on noise."""
    model(torch.randn(4, width)).backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: nn.Module, step: int = 0, **more: Any) -> State:
    """Around a model whose optimizer has not run yet."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    progress = Progress(step, 8 * step, 5.5, 4.5)
    given: dict[str, Any] = {"shape": SHAPE, "scaler": {"scale": 65536.0, "_growth_tracker": step}, **more}
    return State(model=model, optimizer=optimizer, progress=progress, **given)


def state_after(step: int, width: int = 8, **more: Any) -> State:
    """With a step of the optimizer behind it."""
    torch.manual_seed(step)
    net = Net(width)
    state = state_of(net, step, **more)
    stepped(net, state.optimizer, width)
    return state


@contextmanager
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def place(uri: object, group: dist.ProcessGroup, **config: Any) -> Checkpoints:
    return Checkpoints(str(uri), group, CheckpointConfig.model_validate(config))


def saved(checkpoints: Checkpoints, *states: State) -> list[str]:
    """Save them one after another, and wait for each."""
    found = []
    for state in states:
        checkpoints.save(state)
        found += checkpoints.wait()
    return found
