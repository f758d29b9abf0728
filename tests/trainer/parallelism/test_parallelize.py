"""Initialization, recomputation, compilation and float8 of a model's blocks."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch.fx import GraphModule
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.conftest import TINY, tiny
from trainer.distributed import init_distributed
from trainer.models import build, decoder, loss
from trainer.models.decoder import rotate
from trainer.parallelism import parallelize, wrap_in_ddp
from trainer.precision import Precision
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig

CPU = torch.device("cpu")


def run_step(config: TrainerConfig, environment: Environment, inspect: Callable[[nn.Module], None]) -> float:
    """One forward and backward pass of the model on one rank."""
    model, precision = build(config), Precision(config, CPU)
    with init_distributed(config, environment, CPU) as distributed:
        parallelize(model, config, distributed, precision)
        module = wrap_in_ddp(model, config, distributed)
        tokens = torch.randint(0, 256, (2, 33))
        with precision.autocast():
            loss = module(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        inspect(model.module)
        return float(loss.detach())


def test_rotary_table_remains_fp32(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = set()

    def recording_rotate(x: Tensor, table: Tensor) -> Tensor:
        dtypes.add((x.dtype, table.dtype))
        return rotate(x, table)

    monkeypatch.setattr(decoder, "rotate", recording_rotate)
    run_step(tiny(precision="bf16", parallel={"data": "fsdp"}), alone, lambda module: None)
    assert dtypes == {(torch.bfloat16, torch.float32)}


@pytest.mark.parametrize("enabled", [True, False])
def test_torch_compile_has_the_setting_of_asynchronous_tensor_parallelism(alone: Environment, enabled: bool) -> None:
    config = tiny(memory={"compile": True}, parallel={"data": "fsdp"})
    # One rank has no tensor parallelism, with which the setting is valid.
    parallel = config.parallel.model_copy(update={"async_tensor": enabled})
    config = config.model_copy(update={"parallel": parallel})
    # pytest's monkeypatch would delete the setting at the end.
    with inductor_config.patch(_micro_pipeline_tp=not enabled), init_distributed(config, alone, CPU) as distributed:
        parallelize(build(config), config, distributed, Precision(config, CPU))
        assert inductor_config._micro_pipeline_tp is enabled


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_each_block_is_compiled(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, data: str, checkpointing: str
) -> None:
    """With and without recomputation, and by one graph for all: torch stops after eight compilations of a function."""
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(loss, "_compiled", loss._eager)  # it is compiled, too
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    memory = {"compile": True, "activation_checkpointing": checkpointing}
    config = tiny(memory=memory, parallel={"data": data}, model={**TINY["model"], "layers": 9})
    names: list[str] = []
    run_step(config, alone, lambda module: names.extend(dict(module.named_parameters())))
    assert len(graphs) in (1, 2)  # the first block's input may need other guards
    assert "layers.0.self_attn.q_proj.weight" in names  # names of parameters are unchanged


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_activation_checkpointing_saves_memory(alone: Environment, data: str) -> None:
    """Full checkpointing saves only each block's input; selective checkpointing repeats no matrix product."""
    saved_bytes: dict[str, int] = {}
    flops: dict[str, int] = {}
    for checkpointing in ("none", "selective", "full"):
        config = tiny(
            memory={"activation_checkpointing": checkpointing, "loss_chunk_tokens": 8}, parallel={"data": data}
        )
        model, precision = build(config), Precision(config, CPU)
        with init_distributed(config, alone, CPU) as distributed:
            parallelize(model, config, distributed, precision)
            module = wrap_in_ddp(model, config, distributed)
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
        saved_bytes[checkpointing], flops[checkpointing] = sum(saved.values()), counter.get_total_flops()
    assert saved_bytes["full"] < 0.5 * saved_bytes["none"]
    assert saved_bytes["selective"] < 0.5 * saved_bytes["none"]  # without the products, which its cache holds
    assert flops["selective"] == flops["none"] < flops["full"]


@pytest.fixture
def emulated_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulate float8 in bf16, as torchao does without a GPU."""
    from torchao.float8 import Float8LinearConfig

    from_recipe_name = Float8LinearConfig.from_recipe_name
    monkeypatch.setattr(
        Float8LinearConfig,
        "from_recipe_name",
        staticmethod(lambda name: dataclasses.replace(from_recipe_name(name), emulate=True)),
    )


@pytest.mark.usefixtures("emulated_float8")
@pytest.mark.parametrize(
    ("data", "recipe"),
    [("ddp", "tensorwise"), ("fsdp", "tensorwise"), ("fsdp", "rowwise"), ("fsdp", "rowwise_with_gw_hp")],
)
def test_blocks_use_float8_linear_layers(alone: Environment, data: str, recipe: str) -> None:
    low_precision = {"float8_recipe": recipe, "minimum_features": 16}
    losses = {}
    for precision in ("bf16", "float8"):
        kinds: set[str] = set()

        def collect_types(module: nn.Module, kinds: set[str] = kinds) -> None:
            kinds.update(type(part).__name__ for part in module.modules() if isinstance(part, nn.Linear))
            assert all(parameter.grad is not None for parameter in module.parameters())

        torch.manual_seed(0)
        config = tiny(precision=precision, parallel={"data": data}, low_precision=low_precision)
        losses[precision] = run_step(config, alone, collect_types)
        assert any("Float8" in kind for kind in kinds) == (precision == "float8")
        assert kinds & {"OutputLayer", "FSDPOutputLayer"}  # it is in no block
    assert losses["bf16"] != losses["float8"]
    assert losses["bf16"] == pytest.approx(losses["float8"], abs=0.01)


@pytest.mark.usefixtures("emulated_float8")
def test_small_linear_layers_remain_in_bf16(alone: Environment) -> None:
    """With two key and value heads of four, their projections are half as wide as the others."""
    kinds: dict[str, str] = {}

    def collect(module: nn.Module) -> None:
        kinds.update((name.rpartition(".")[2], type(part).__name__) for name, part in module.named_modules())

    dim = TINY["model"]["dim"]
    run_step(tiny(precision="float8", low_precision={"minimum_features": dim}), alone, collect)
    assert kinds["q_proj"] == "Float8Linear"
    assert kinds["k_proj"] == kinds["v_proj"] == "Linear"


# Without a GPU torchao computes mxfp8 in bf16.
MXFP8: dict[str, Any] = {
    "model": {**TINY["model"], "kv_heads": 4},
    "parallel": {"data": "fsdp"},
    "low_precision": {"minimum_features": 32},
}


@pytest.mark.parametrize("compiled", [False, True])
def test_blocks_use_mxfp8_linear_layers(alone: Environment, compiled: bool) -> None:
    losses: dict[str, float] = {}
    kinds: set[type] = set()
    for precision in ("bf16", "mxfp8"):
        torch.manual_seed(0)
        config = tiny(precision=precision, memory={"compile": compiled}, **MXFP8)
        losses[precision] = run_step(config, alone, lambda module: kinds.update(map(type, module.modules())))
    assert "MXFP8Linear" in {kind.__name__ for kind in kinds}
    assert losses["bf16"] != losses["mxfp8"]
    assert losses["bf16"] == pytest.approx(losses["mxfp8"], abs=0.01)


def test_last_blocks_remain_in_bf16(alone: Environment) -> None:
    names: list[str] = []

    def collect(module: nn.Module) -> None:
        names.extend(name for name, part in module.named_modules() if type(part).__name__ == "MXFP8Linear")

    low_precision = {**MXFP8["low_precision"], "bf16_blocks": 1}
    run_step(tiny(precision="mxfp8", **{**MXFP8, "low_precision": low_precision}), alone, collect)
    assert len(names) == 7
    assert all(name.startswith("layers.0.") for name in names)
