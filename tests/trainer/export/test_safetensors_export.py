"""Export as safetensors and as int8 weights, in one process."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from tests.trainer.checkpoints.states import SHAPE, Net, open_checkpoints, save_all, trained_state
from trainer.export.int8_export import export_int8
from trainer.export.safetensors_export import (
    SafetensorsFile,
    export_checkpoint,
    export_model,
    load_exported_weights,
    plan_files,
)
from trainer.storage import open_storage


def test_files_are_filled_to_the_limit_and_numbered_over_all_stages() -> None:
    assert plan_files([{"a": 3, "b": 1, "c": 9, "d": 1}, {"e": 2}], 4) == [
        [
            SafetensorsFile("model-00001-of-00004.safetensors", ("a", "b")),
            SafetensorsFile("model-00002-of-00004.safetensors", ("c",)),
            SafetensorsFile("model-00003-of-00004.safetensors", ("d",)),
        ],
        [SafetensorsFile("model-00004-of-00004.safetensors", ("e",))],
    ]
    assert plan_files([{"a": 3}]) == [[SafetensorsFile("model.safetensors", ("a",))]]


def test_small_model_is_one_file(tmp_path: Path, group: dist.ProcessGroup) -> None:
    model = trained_state(3).model
    export_model(model, SHAPE, open_storage(str(tmp_path), "X"), group)
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"model.safetensors", "config.json"}
    weights = load_file(tmp_path / "export/model.safetensors")
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.named_parameters())
    assert json.loads((tmp_path / "export/config.json").read_text()) == SHAPE


def test_export_deletes_files_of_an_earlier_export(tmp_path: Path, group: dist.ProcessGroup) -> None:
    model, storage = trained_state(3).model, open_storage(str(tmp_path), "X")
    export_model(model, SHAPE, storage, group, limit=600)
    assert (tmp_path / "export/model.safetensors.index.json").exists()
    export_model(model, SHAPE, storage, group)
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"model.safetensors", "config.json"}


def test_wrapper_prefixes_and_second_names_are_removed(tmp_path: Path, group: dist.ProcessGroup) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    model["head"].weight = model["embedding"].weight
    outer = nn.ModuleDict({"model": checkpoint_wrapper(model)})
    export_model(outer, SHAPE, open_storage(str(tmp_path), "X"), group, rename=lambda name: name.removeprefix("model."))
    assert load_file(tmp_path / "export/model.safetensors").keys() == {"embedding.weight"}


def test_checkpoint_is_exported_without_process_group(tmp_path: Path, group: dist.ProcessGroup) -> None:
    state = trained_state(3)
    with open_checkpoints(tmp_path / "checkpoints", group) as checkpoints:
        (uri,) = save_all(checkpoints, state)
    storage = open_storage(str(tmp_path / "target"), "TARGET")
    export_checkpoint(uri, SHAPE, storage, limit=600)
    other = Net()
    load_exported_weights(other, storage, folder="")
    for actual, expected in zip(other.parameters(), state.model.parameters(), strict=True):
        assert torch.equal(actual, expected)


def test_int8_weights_are_a_quarter_of_the_size_with_a_close_loss(tmp_path: Path) -> None:
    net = trained_state(3, width=128).model
    x = torch.randn(16, 128)

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float(model(x))

    full = evaluate(net)
    report = export_int8(net, dict(SHAPE), open_storage(str(tmp_path), "X"), evaluate=evaluate)
    assert report.matrices == 4
    assert report.full_loss == full
    assert report.loss == pytest.approx(full, rel=0.01)
    assert report.loss != full
    assert report.bytes < 0.27 * report.full_bytes
    assert json.loads((tmp_path / "export/int8/report.json").read_text())["bytes"] == report.bytes


def test_int8_weights_compute_the_same_after_loading(tmp_path: Path) -> None:
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    net = trained_state(3).model
    export_int8(net, dict(SHAPE), open_storage(str(tmp_path), "X"))
    path = tmp_path / "export/int8/model.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, remaining = unflatten_tensor_state_dict(load_file(path), file.metadata())
    assert not remaining
    other = Net()
    other.load_state_dict(tensors, assign=True)
    x = torch.randn(2, 8)
    assert torch.equal(other(x), net(x))
