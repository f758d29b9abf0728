"""A tiny model with an optimizer, its training state, and its checkpoints."""

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
    """Blocks in sequence. `blocks`: numbers of the blocks of this rank; their names are those of the whole model."""

    def __init__(self, width: int = 8, blocks: tuple[int, ...] = (0, 1)) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(number): Block(width) for number in blocks})
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x.square().mean()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, width: int) -> None:
    """Run a training step on random data."""
    model(torch.randn(4, width)).backward()
    optimizer.step()
    optimizer.zero_grad()


def create_state(model: nn.Module, step: int = 0, **overrides: Any) -> State:
    """Create the state of a model whose optimizer has no state yet."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    progress = Progress(step, 8 * step, 5.5, 4.5)
    options: dict[str, Any] = {"shape": SHAPE, "scaler": {"scale": 65536.0, "_growth_tracker": step}, **overrides}
    return State(model=model, optimizer=optimizer, progress=progress, **options)


def trained_state(step: int, width: int = 8, **overrides: Any) -> State:
    """Create a state after one step of the optimizer."""
    torch.manual_seed(step)
    net = Net(width)
    state = create_state(net, step, **overrides)
    train_step(net, state.optimizer, width)
    return state


@contextmanager
def single_process_group() -> Iterator[dist.ProcessGroup]:
    """Create a process group with one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def open_checkpoints(uri: object, group: dist.ProcessGroup, **config: Any) -> Checkpoints:
    """Open the checkpoints at a URI. `config`: fields of CheckpointConfig."""
    return Checkpoints(str(uri), group, CheckpointConfig.model_validate(config))


def save_all(checkpoints: Checkpoints, *states: State) -> list[str]:
    """Save states one after another, wait for each, and return the URIs."""
    uris = []
    for state in states:
        checkpoints.save(state)
        uris += checkpoints.wait()
    return uris
