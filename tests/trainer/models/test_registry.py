"""Models of the user, which the registry names."""

import dataclasses
import math
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from tests.problems import rejects
from tests.trainer.conftest import ROOT, TINY, tiny
from tests.trainer.layouts import read_metrics, run_layouts
from tests.trainer.models.convolutions import ConvolutionalModel
from trainer.distributed import init_distributed
from trainer.loop import train
from trainer.models import build, registry
from trainer.models.registry import MODELS
from trainer.parallelism import parallelize
from trainer.precision import Precision
from trainer.settings import Environment

CUSTOM = {"kind": "custom", "name": "convolutions", "vocabulary": 256, "sequence_length": 32}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "convolutions", "tests.trainer.models.convolutions:ConvolutionalModel")
    monkeypatch.setitem(MODELS, "documents", "tests.trainer.models.convolutions:DocumentModel")


def custom(**changes: Any) -> Any:
    return tiny(model={**CUSTOM, **changes})


def test_a_registered_model_has_its_blocks_and_flops() -> None:
    model = build(custom(settings={"layers": 3}))
    assert list(model.blocks) == ["blocks.0", "blocks.1", "blocks.2"]
    assert model.flops == 6 * (model.parameters - 256 * 32) * 32


def test_a_shared_embedding_is_in_a_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.trainer.models import convolutions

    class Tied(convolutions.ConvolutionalModel):
        def __init__(self, **sizes: Any) -> None:
            super().__init__(**sizes)
            self.output.weight = self.embedding.weight

    monkeypatch.setattr(convolutions, "ConvolutionalModel", Tied)
    model = build(custom())
    assert model.flops == 6 * model.parameters * 32


def test_the_model_in_the_documentation_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documentation shows a class, its line in the registry and the settings of a stack."""
    text = (ROOT / "docs/trainer.md").read_text()
    source, line, settings = re.findall(
        r"```(?:python|yaml)\n((?:# trainer/models|MODELS|model: {kind: custom).*?)```", text, re.DOTALL
    )[:3]
    module = ModuleType("trainer.models.perceptron")
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names: dict[str, Any] = {}
    exec(line, names)
    monkeypatch.setattr(registry, "MODELS", names["MODELS"])
    model, data = yaml.safe_load(settings).values()
    built = build(tiny(model=model | {"settings": model["small_settings"]}, data=data))
    tokens = torch.randint(0, 32_000, (1, 9))
    assert built.module(tokens[:, :-1], tokens[:, 1:]).item() == pytest.approx(math.log(32_000), abs=0.5)


def test_weights_depend_on_the_seed() -> None:
    def weights(**changes: Any) -> torch.Tensor:
        model = build(tiny(model=CUSTOM, **changes))
        assert isinstance(model.module.output, nn.Linear)
        return model.module.output.weight

    assert torch.equal(weights(), weights())
    assert not torch.equal(weights(), weights(seed=2))


def test_a_model_that_is_not_registered_is_rejected() -> None:
    with rejects("model_not_registered", "convolution", "Write convolutions"):
        build(custom(name="convolution"))
    with rejects("model_not_registered", "gru", "trainer/models/registry.py"):
        build(custom(name="gru"))


@pytest.mark.parametrize("place", ["trainer.models.missing:Model", "trainer.models.decoder:Missing", "trainer.models"])
def test_a_line_that_names_no_class_is_rejected(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setitem(MODELS, "convolutions", place)
    with rejects("model_not_importable", place, "trainer/models/registry.py"):
        build(custom())


def test_a_class_that_is_no_module_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "convolutions", "pathlib:Path")
    with rejects("model_is_no_module", "pathlib:Path", "torch.nn.Module"):
        build(custom())


def test_a_model_that_returns_no_loss_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConvolutionalModel, "forward", lambda self, tokens, targets: self.embedding(tokens))
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    with rejects("model_returns_no_loss", "ConvolutionalModel.forward must return the loss", "(2, 8, 32)"):
        build(custom()).module(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize(("settings", "word"), [({"heads": 3}, "heads"), ({"layers": 0}, "layers must be positive")])
def test_settings_that_the_class_rejects_are_an_input_error(settings: dict[str, Any], word: str) -> None:
    with rejects("model_settings_rejected", "config.model.settings", word):
        build(custom(settings=settings))


def test_an_error_in_the_class_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ConvolutionalModel, **_: Any) -> None:
        raise TypeError("unsupported operand")

    monkeypatch.setattr(ConvolutionalModel, "__init__", fail)
    line = fail.__code__.co_firstlineno + 1
    with rejects("model_settings_rejected", "config.model.settings", f"unsupported operand (test_registry.py:{line})"):
        build(custom())


@pytest.mark.parametrize("memory", [{"activation_checkpointing": "full"}, {"compile": True}])
def test_settings_of_blocks_need_blocks(alone: Environment, memory: dict[str, Any]) -> None:
    config = tiny(model=CUSTOM, memory=memory)
    model = dataclasses.replace(build(config), blocks={})
    device = torch.device("cpu")
    message = rejects("model_without_blocks", f"config.memory.{next(iter(memory))}", "nn.ModuleList")
    with init_distributed(config, alone, device) as distributed, message:
        parallelize(model, config, distributed, Precision(config, device))


class UnusedParameter(ConvolutionalModel):
    """A model with a matrix that the loss does not depend on."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.blocks[0].unused = nn.Linear(8, 8, bias=False)


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_parameter_without_gradient_is_rejected(
    monkeypatch: pytest.MonkeyPatch, alone: Environment, dataset: Path, data: str, optimizer: str
) -> None:
    monkeypatch.setitem(MODELS, "convolutions", f"{__name__}:UnusedParameter")
    config = tiny(model=CUSTOM, parallel={"data": data}, optimizer={**TINY["optimizer"], "kind": optimizer})
    with rejects("parameters_without_gradient", "config.model", "blocks.0.unused.weight"):
        train(config, dataclasses.replace(alone, data_uri=str(dataset)))


@pytest.mark.parametrize(("name", "expected"), [("convolutions", False), ("documents", True)])
def test_a_model_accepts_documents_if_it_has_the_argument(name: str, expected: bool) -> None:
    accepts = build(custom(name=name)).separates_documents
    assert accepts is not None
    assert accepts() is expected


@pytest.mark.slow
def test_a_registered_model_trains_in_each_data_layout(tmp_path: Path, dataset: Path, cache: Path) -> None:
    optimizer = {**TINY["optimizer"], "schedule": "constant"}
    base = {**TINY, "model": CUSTOM, "batch_size": 8, "steps": 4, "optimizer": optimizer}
    layouts: dict[str, Any] = {
        "ddp": {"checkpoint": {"export": ["safetensors"]}},
        "fsdp": {"parallel": {"data": "fsdp"}, "checkpoint": {"export": ["safetensors"]}},
        "hsdp": {"parallel": {"data": "hsdp", "shard": 1}},
        "recomputed": {"memory": {"activation_checkpointing": "full", "compile": True}},
    }
    variables = {"PYTHONPATH": str(ROOT), "DATA_URI": str(dataset), "TRAINYARD_CACHE": str(cache)}
    environment = os.environ | variables
    run_layouts(tmp_path, 1, {"single": base}, environment)
    run_layouts(tmp_path, 2, {name: base | changes for name, changes in layouts.items()}, environment)
    single = [line["loss"] for line in read_metrics(tmp_path / "single")]
    for name in layouts:
        assert [line["loss"] for line in read_metrics(tmp_path / name)] == pytest.approx(single, abs=1e-5)
    assert list((tmp_path / "fsdp/results/export").glob("*.safetensors"))
