"""Copies in the memory of two nodes with two ranks each: `python -m tests.trainer.checkpoints.memory_ranks FOLDER`.

Each scenario makes three steps with copies, changes the memory of the nodes, and loads in new processes. The outcome of
a scenario is the loaded step of each rank, and whether its state is that which the rank had then.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from tests.polling import eventually
from tests.trainer.checkpoints.ranks import run_ranks, sharded_state
from tests.trainer.checkpoints.states import Net, create_state, train_step
from trainer.checkpoints import State
from trainer.checkpoints.memory import MemoryCopies
from trainer.checkpoints.memory_writer import state_parts
from trainyard.config.training.config import CheckpointConfig

STEPS = 3
RANKS_PER_NODE = 2


class NetWithBuffer(Net):
    """A model whose buffer differs between replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.seen, Tensor)
        with torch.no_grad():
            self.seen += x.flatten()[:3]
        return super().forward(x)


def replicated(seed: int) -> State:
    """The same weights on all ranks, other generators and buffers."""
    torch.manual_seed(seed)
    state = create_state(NetWithBuffer(), replicas=dist.group.WORLD)
    train_step(state.model, state.optimizer, 8)
    torch.manual_seed(100 * seed + dist.get_rank())
    state.model(torch.randn(4, 8))
    return state


def sharded(seed: int) -> State:
    """A quarter of each tensor on each rank."""
    return sharded_state(init_device_mesh("cpu", (4,)), seed)


def sharded_in_nodes(seed: int) -> State:
    """Halves of each tensor on the two ranks of each node."""
    return sharded_state(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), seed)


def open_memory(folder: Path, rank: int) -> MemoryCopies:
    node = folder / f"node-{rank // RANKS_PER_NODE}"
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    config = CheckpointConfig(memory_interval_steps=1)
    return MemoryCopies(node, group, config, rank % RANKS_PER_NODE, RANKS_PER_NODE)


def snapshot(state: State) -> dict[str, Tensor]:
    parts = state_parts(state)
    return {name: tensor.detach().clone() for part in parts.values() for name, tensor in part.items()}


def advance(state: State) -> None:
    """Change all tensors as a step does; equally on replicas."""
    with torch.no_grad():
        for tensor in state_parts(state)["shard"].values():
            tensor.add_(1)
    torch.rand(1)
    state.progress.advance(8)


def create_save(create: Callable[[int], State]) -> Callable[[Path, int], None]:
    def save(folder: Path, rank: int) -> None:
        state = create(1)
        state.progress.step = 0
        memory = open_memory(folder, rank)
        assert memory.load(state, None) is None
        memory.prepare(state)
        for step in range(1, STEPS + 1):
            memory.wait_for_staging()
            advance(state)
            torch.save(snapshot(state), folder / f"expected-{step}-{rank}.pt")
            memory.save(state)
            memory.wait_for_staging()
            eventually(lambda: not memory.is_busy, "the end of the copy")
        memory.close()

    return save


def create_load(create: Callable[[int], State], newest: int | None) -> Callable[[Path, int], None]:
    def load(folder: Path, rank: int) -> None:
        state = create(2)
        memory = open_memory(folder, rank)
        step = memory.load(state, newest)
        equal = step is not None
        if step is not None:
            expected, loaded = torch.load(folder / f"expected-{step}-{rank}.pt"), snapshot(state)
            equal = all(torch.equal(expected[name], loaded[name]) for name in expected) and state.progress.step == step
        memory.prepare(state)
        memory.save(state)  # the memory of each node can be used again
        memory.wait_for_staging()
        memory.close()
        (folder / f"outcome-{rank}.json").write_text(json.dumps([step, equal]))

    return load


def keep(folder: Path) -> None:
    """Nothing happens to the memory."""


def lose_node(folder: Path) -> None:
    """Node 1 is replaced by another instance."""
    shutil.rmtree(folder / "node-1")


def swap_nodes(folder: Path) -> None:
    """The nodes exchange their ranks."""
    (folder / "node-0").rename(folder / "other")
    (folder / "node-1").rename(folder / "node-0")
    (folder / "other").rename(folder / "node-1")


def lose_both(folder: Path) -> None:
    """All nodes are replaced."""
    lose_node(folder)
    shutil.rmtree(folder / "node-0")


def lose_newest_of_a_rank(folder: Path) -> None:
    """No node has the newest step of rank 3, which was slower than the others."""
    for mark in folder.glob("node-*/*.json"):
        content = json.loads(mark.read_text())
        if (content["step"], content["owner"]) == (STEPS, 3):
            mark.unlink()


def damage_newest(folder: Path) -> None:
    """One byte of each file with the newest step on node 0 differs."""
    for mark in (folder / "node-0").glob("own-*.json"):
        if json.loads(mark.read_text())["step"] == STEPS:
            file = mark.with_suffix("")
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)


SCENARIOS: dict[str, tuple[Callable[[int], State], Callable[[Path], None], int | None]] = {
    "replicated-lost-node": (replicated, lose_node, None),
    "replicated-swapped": (replicated, swap_nodes, None),
    "sharded-lost-node": (sharded, lose_node, None),
    "sharded-in-nodes-lost-node": (sharded_in_nodes, lose_node, None),
    "all-lost": (sharded, lose_both, None),
    "damaged": (sharded, damage_newest, None),
    "lost-newest": (sharded, lose_newest_of_a_rank, None),
    "older-than-checkpoint": (replicated, keep, STEPS + 1),
}


def main() -> None:
    root = Path(sys.argv[1])
    outcomes: dict[str, Any] = {}
    for name, (create, change, newest) in SCENARIOS.items():
        folder = root / name
        folder.mkdir()
        statuses = run_ranks(4, create_save(create), folder)
        change(folder)
        statuses += run_ranks(4, create_load(create, newest), folder)
        files = [folder / f"outcome-{rank}.json" for rank in range(4)]
        outcomes[name] = [json.loads(file.read_text()) if file.exists() else None for file in files]
        assert not any(statuses), (name, statuses)
    (root / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
