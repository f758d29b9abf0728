"""Weights as safetensors and in 8 bits, of a model in one process."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from tests.trainer.checkpoints.states import SHAPE, Net, place, saved, state_after
from trainer.export.int8 import export_int8
from trainer.export.weights import File, export_checkpoint, export_model, fill_from, plan
from trainer.storage import open_storage


def test_files_are_filled_up_to_the_limit_and_numbered_over_all_stages() -> None:
    assert plan([{"a": 3, "b": 1, "c": 9, "d": 1}, {"e": 2}], 4) == [
        [
            File("model-00001-of-00004.safetensors", ("a", "b")),
            File("model-00002-of-00004.safetensors", ("c",)),
            File("model-00003-of-00004.safetensors", ("d",)),
        ],
        [File("model-00004-of-00004.safetensors", ("e",))],
    ]
    assert plan([{"a": 3}]) == [[File("model.safetensors", ("a",))]]


def test_a_small_model_is_one_file(tmp_path: Path, group: dist.ProcessGroup) -> None:
    model = state_after(3).model
    export_model(model, SHAPE, open_storage(str(tmp_path), "X"), group)
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"model.safetensors", "config.json"}
    found = load_file(tmp_path / "export/model.safetensors")
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.named_parameters())
    assert json.loads((tmp_path / "export/config.json").read_text()) == SHAPE


def test_an_export_leaves_nothing_of_an_earlier_one(tmp_path: Path, group: dist.ProcessGroup) -> None:
    model, storage = state_after(3).model, open_storage(str(tmp_path), "X")
    export_model(model, SHAPE, storage, group, limit=600)
    assert (tmp_path / "export/model.safetensors.index.json").exists()
    export_model(model, SHAPE, storage, group)
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"model.safetensors", "config.json"}


def test_what_a_wrapper_adds_to_names_and_a_second_name_are_left_out(tmp_path: Path, group: dist.ProcessGroup) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    model["head"].weight = model["embedding"].weight
    outer = nn.ModuleDict({"model": checkpoint_wrapper(model)})
    export_model(outer, SHAPE, open_storage(str(tmp_path), "X"), group, prefix="model.")
    assert load_file(tmp_path / "export/model.safetensors").keys() == {"embedding.weight"}


def test_a_checkpoint_is_exported_without_ranks(tmp_path: Path, group: dist.ProcessGroup) -> None:
    state = state_after(3)
    with place(tmp_path / "checkpoints", group) as checkpoints:
        (uri,) = saved(checkpoints, state)
    storage = open_storage(str(tmp_path / "target"), "TARGET")
    export_checkpoint(uri, SHAPE, storage, limit=600)
    other = Net()
    fill_from(other, storage, folder="")
    for mine, theirs in zip(other.parameters(), state.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_eight_bits_are_a_quarter_of_the_size_and_near_in_loss(tmp_path: Path) -> None:
    net = state_after(3, width=128).model
    x = torch.randn(16, 128)

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float(model(x))

    full = evaluate(net)
    found = export_int8(net, dict(SHAPE), open_storage(str(tmp_path), "X"), evaluate=evaluate)
    assert found.matrices == 4
    assert found.full_loss == full
    assert found.loss == pytest.approx(full, rel=0.01)
    assert found.loss != full
    assert found.bytes < 0.27 * found.full_bytes
    assert json.loads((tmp_path / "export/int8/report.json").read_text())["bytes"] == found.bytes


def test_what_is_written_in_eight_bits_computes_the_same_when_read(tmp_path: Path) -> None:
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    net = state_after(3).model
    export_int8(net, dict(SHAPE), open_storage(str(tmp_path), "X"))
    path = tmp_path / "export/int8/model.safetensors"
    with safe_open(path, framework="pt") as opened:
        tensors, left = unflatten_tensor_state_dict(load_file(path), opened.metadata())
    assert not left
    other = Net()
    other.load_state_dict(tensors, assign=True)
    x = torch.randn(2, 8)
    assert torch.equal(other(x), net(x))
