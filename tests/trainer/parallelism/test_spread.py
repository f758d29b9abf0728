"""What is done to a model's blocks as they are brought to the ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.conftest import TINY, tiny
from trainer.models import build, decoder
from trainer.models.decoder import rotate
from trainer.parallelism import spread
from trainer.precision import Precision
from trainer.ranks import join
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig

CPU = torch.device("cpu")


def trained(config: TrainerConfig, environment: Environment, look: Callable[[nn.Module], None]) -> float:
    """One forward and backward pass of the model on one rank."""
    model, precision = build(config), Precision(config, CPU)
    with join(config, environment, CPU) as ranks:
        module = spread(model, config, ranks, precision)
        tokens = torch.randint(0, 256, (2, 33))
        with precision.autocast():
            loss = module(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        look(model.module)
        return float(loss.detach())


def test_angles_stay_exact_where_weights_are_cast(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def seen_by(x: Tensor, table: Tensor) -> Tensor:
        seen.add((x.dtype, table.dtype))
        return rotate(x, table)

    monkeypatch.setattr(decoder, "rotate", seen_by)
    trained(tiny(precision="bf16", parallel={"data": "fsdp"}), alone, lambda module: None)
    assert seen == {(torch.bfloat16, torch.float32)}


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_each_block_is_compiled(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, data: str, checkpointing: str
) -> None:
    """Computed again or not, and by one graph for all: torch gives up after eight of the same code."""
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    memory = {"compile": True, "activation_checkpointing": checkpointing}
    config = tiny(memory=memory, parallel={"data": data}, model={**TINY["model"], "layers": 9})
    names: list[str] = []
    trained(config, alone, lambda module: names.extend(dict(module.named_parameters())))
    assert len(graphs) in (1, 2)  # the first block's input may need other guards
    assert "blocks.0.attention.queries.weight" in names  # a checkpoint's names are the same with it and without


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_computing_again_saves_memory(alone: Environment, data: str) -> None:
    """All of it keeps but each block's input; selectively, no matrix product is done twice."""
    kept: dict[str, int] = {}
    flops: dict[str, int] = {}
    for checkpointing in ("none", "selective", "full"):
        config = tiny(memory={"activation_checkpointing": checkpointing, "loss_chunk": 8}, parallel={"data": data})
        model, precision = build(config), Precision(config, CPU)
        with join(config, alone, CPU) as ranks:
            module = spread(model, config, ranks, precision)
            tokens = torch.randint(0, 256, (2, 33))
            weights = {parameter.shape for parameter in model.module.parameters()}
            saved: dict[int, int] = {}

            def keep(tensor: Tensor, saved: dict[int, int] = saved, weights: set[torch.Size] = weights) -> Tensor:
                if tensor.shape not in weights and tensor.shape[::-1] not in weights:
                    saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = module(tokens[:, :-1], tokens[:, 1:])
            with FlopCounterMode(display=False) as counter:
                loss.backward()
        kept[checkpointing], flops[checkpointing] = sum(saved.values()), counter.get_total_flops()
    assert kept["full"] < 0.5 * kept["none"]
    assert kept["selective"] < 0.5 * kept["none"]  # beside the products, which its own cache holds
    assert flops["selective"] == flops["none"] < flops["full"]


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_a_blocks_products_are_in_float8(alone: Environment, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    """Computed in bf16 from values of eight bits, as torchao does where no GPU is."""
    from torchao import float8

    emulated = partial(float8.convert_to_float8_training, config=float8.Float8LinearConfig(emulate=True))
    monkeypatch.setattr(float8, "convert_to_float8_training", emulated)
    losses = {}
    for precision in ("bf16", "float8"):
        kinds: set[str] = set()

        def look(module: nn.Module, kinds: set[str] = kinds) -> None:
            kinds.update(type(part).__name__ for part in module.modules() if isinstance(part, nn.Linear))
            assert all(parameter.grad is not None for parameter in module.parameters())

        torch.manual_seed(0)
        losses[precision] = trained(tiny(precision=precision, parallel={"data": data}), alone, look)
        assert any("Float8" in kind for kind in kinds) == (precision == "float8")
        assert "Linear" in kinds or "FSDPLinear" in kinds  # the output layer is no block's
    assert losses["bf16"] != losses["float8"]
    assert losses["bf16"] == pytest.approx(losses["float8"], abs=0.01)
