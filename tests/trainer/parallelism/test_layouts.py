"""Each parallel layout has the losses and gradient norms of one process with the same seed and batch.

The documents are lines of text: micro-batches have different numbers of targets.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import ROOT, TINY, write_dataset
from tests.trainer.layouts import read_metrics, run_layouts
from trainer.export import __main__ as export_command

pytestmark = pytest.mark.slow

# By number of processes. Data-parallel layouts have 4 ranks; hsdp has 2 groups of 2.
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"single": {}},
    2: {
        "pipeline": {"parallel": {"pipeline": 2}},
        "gpipe": {"parallel": {"pipeline": 2, "schedule": "gpipe"}},
        "context": {"parallel": {"context": 2}},
        "context-compiled": {
            "parallel": {"context": 2, "data": "fsdp"},
            "memory": {"compile": True, "activation_checkpointing": "selective"},
        },
        "fsdp-recomputed": {
            "parallel": {"data": "fsdp", "reshard_after_forward": False},
            "memory": {"activation_checkpointing": "selective", "loss_chunk_tokens": 7},
        },
    },
    4: {
        "ddp": {},
        "fsdp": {"parallel": {"data": "fsdp"}},
        "hsdp": {"parallel": {"data": "hsdp", "shard": 2}},
        "tensor-and-ddp": {"parallel": {"tensor": 2}},
        "tensor-and-fsdp": {"parallel": {"tensor": 2, "data": "fsdp"}, "memory": {"activation_checkpointing": "full"}},
        "pipeline-and-fsdp": {"parallel": {"pipeline": 2, "data": "fsdp"}},
        "pipeline-and-tensor": {"parallel": {"pipeline": 2, "tensor": 2}},
        "context-4": {"parallel": {"context": 4}},
        "context-and-fsdp": {
            "parallel": {"context": 2, "data": "fsdp"},
            "memory": {"activation_checkpointing": "full"},
        },
        "context-and-hsdp": {"parallel": {"context": 2, "data": "hsdp", "shard": 2}},
        "context-and-tensor": {"parallel": {"context": 2, "tensor": 2}},
        "context-and-pipeline": {"parallel": {"context": 2, "pipeline": 2}},
    },
}
# In fp16, with a loss scale that all ranks share.
FP16_LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp-fp16": {"precision": "fp16", "parallel": {"data": "fsdp"}},
    "tensor-fp16": {"precision": "fp16", "parallel": {"tensor": 2}},
    "pipeline-fp16": {"precision": "fp16", "parallel": {"pipeline": 2}},
    "context-fp16": {"precision": "fp16", "parallel": {"context": 2}},
}
# By number of processes, with four layers. Two ranks have two stages each.
DEEP = {"model": {**TINY["model"], "layers": 4}}
INTERLEAVED = {"pipeline": 2, "schedule": "interleaved_1f1b"}
DEEP_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"deep": DEEP},
    2: {"interleaved": DEEP | {"parallel": INTERLEAVED, "checkpoint": {"export": ["safetensors"]}}},
    4: {
        "interleaved-and-fsdp": DEEP | {"parallel": {**INTERLEAVED, "data": "fsdp"}},
        "interleaved-and-tensor": DEEP | {"parallel": {**INTERLEAVED, "tensor": 2}},
        "interleaved-and-context": DEEP | {"parallel": {**INTERLEAVED, "context": 2}},
    },
}
# By number of processes. Muon orthogonalizes in bf16.
MUON = {"optimizer": {**TINY["optimizer"], "clip_norm": 0.2, "kind": "muon"}}
# Its keys have two rows, fewer than there are shards.
MUON_OF_FEW_ROWS = MUON | {"model": {**TINY["model"], "heads": 16, "kv_heads": 1}}
MUON_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"muon": MUON, "muon-of-few-rows": MUON_OF_FEW_ROWS},
    2: {
        "muon-ddp": MUON,
        "muon-fsdp": MUON | {"parallel": {"data": "fsdp"}},
        "muon-pipeline": MUON | {"parallel": {"pipeline": 2}},
        "muon-tensor": MUON | {"parallel": {"tensor": 2}},
    },
    4: {
        "muon-tensor-and-fsdp": MUON | {"parallel": {"tensor": 2, "data": "fsdp"}},
        "muon-hsdp": MUON | {"parallel": {"data": "hsdp", "shard": 2}},
        "muon-context-and-hsdp": MUON | {"parallel": {"context": 2, "data": "hsdp", "shard": 2}},
        "muon-of-few-rows-fsdp": MUON_OF_FEW_ROWS | {"parallel": {"data": "fsdp"}},
    },
}
# Resumed from a checkpoint of half of the steps: name -> number of processes and settings before, and after.
CONSTANT = DEEP | {"optimizer": {**TINY["optimizer"], "clip_norm": 0.2, "schedule": "constant"}}
CONSTANT_MUON = {"optimizer": {**MUON["optimizer"], "schedule": "constant"}}
RESUMED: dict[str, tuple[tuple[int, dict[str, Any]], tuple[int, dict[str, Any]]]] = {
    "interleaved-to-single": ((2, CONSTANT | {"parallel": INTERLEAVED}), (1, CONSTANT)),
    "single-to-interleaved": ((1, CONSTANT), (2, CONSTANT | {"parallel": INTERLEAVED})),
    "muon-fsdp-to-tensor": (
        (2, CONSTANT_MUON | {"parallel": {"data": "fsdp"}}),
        (2, CONSTANT_MUON | {"parallel": {"tensor": 2}}),
    ),
}
STEPS = 5


def config(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run, which clips the gradients of each step."""
    optimizer = {**TINY["optimizer"], "clip_norm": 0.2}
    evaluation = {"interval_steps": STEPS, "batches": 2}
    return {**TINY, "batch_size": 16, "steps": STEPS, "optimizer": optimizer, "evaluation": evaluation, **changes}


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    """The folder of each layout's run, which `runs` adds."""
    return {}


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, cache: Path, folders: dict[str, Path]
) -> dict[str, list[dict[str, Any]]]:
    """The metrics of each layout."""
    lines: dict[str, list[dict[str, Any]]] = {}
    lines_of_text = write_dataset(tmp_path_factory.mktemp("data"), end=ord("\n"))
    variables = {"PYTHONPATH": str(ROOT), "DATA_URI": str(lines_of_text), "TRAINYARD_CACHE": str(cache)}
    for processes, listed in LAYOUTS.items():
        layouts = listed | DEEP_LAYOUTS[processes] | MUON_LAYOUTS[processes] | (FP16_LAYOUTS if processes == 2 else {})
        folder = tmp_path_factory.mktemp(f"on-{processes}")
        run_layouts(folder, processes, {name: config(each) for name, each in layouts.items()}, os.environ | variables)
        lines |= {name: read_metrics(folder / name) for name in layouts}
        folders |= {name: folder / name for name in layouts}
    folder = tmp_path_factory.mktemp("resumed")
    constant = {"constant": config(CONSTANT), "constant-muon": config(CONSTANT_MUON)}
    run_layouts(folder, 1, constant, os.environ | variables)
    for name, ((before, first), (after, second)) in RESUMED.items():
        run_layouts(folder, before, {name: config(first) | {"steps": STEPS // 2}}, os.environ | variables)
        run_layouts(folder, after, {name: config(second)}, os.environ | variables)
    return lines | {name: read_metrics(folder / name) for name in (*constant, *RESUMED)}


@pytest.mark.parametrize("layout", [name for layouts in LAYOUTS.values() for name in layouts])
def test_losses_equal_those_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    actual, single = ([line["loss"] for line in runs[name]] for name in (layout, "single"))
    assert len(actual) == STEPS
    assert actual == pytest.approx(single, abs=1e-5)


@pytest.mark.parametrize("layout", [name for layouts in LAYOUTS.values() for name in layouts])
def test_validation_loss_equals_that_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    actual, single = (runs[name][-1]["validation_loss"] for name in (layout, "single"))
    assert actual == pytest.approx(single, abs=1e-5)


@pytest.mark.parametrize("layout", [name for layouts in LAYOUTS.values() for name in layouts])
def test_gradient_norm_equals_that_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    norms = [line["gradient_norm"] for line in runs[layout]]
    assert norms == pytest.approx([line["gradient_norm"] for line in runs["single"]], rel=1e-4)
    assert min(norms) > 0.2


@pytest.mark.parametrize("layout", FP16_LAYOUTS)
def test_fp16_is_close_to_fp32_in_each_layout(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    actual, single = runs[layout], runs["single"]
    assert [line["loss"] for line in actual] == pytest.approx([line["loss"] for line in single], abs=0.01)
    norms = [line["gradient_norm"] for line in actual]
    assert norms == pytest.approx([line["gradient_norm"] for line in single], rel=0.05)
    assert not any(line["skipped"] for line in actual)


@pytest.mark.parametrize("layout", ["pipeline", "gpipe"])
def test_pipeline_schedule_counts_as_backward(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    for line in runs[layout]:
        assert line["forward_seconds"] == 0 < line["backward_seconds"]


@pytest.mark.parametrize("layout", [name for ranks, layouts in MUON_LAYOUTS.items() for name in layouts if ranks > 1])
def test_muon_is_close_to_that_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    same_model = "muon-of-few-rows" if "few-rows" in layout else "muon"
    actual, single = ([line["loss"] for line in runs[name]] for name in (layout, same_model))
    assert actual == pytest.approx(single, abs=1e-4)
    assert actual[-1] < actual[0]


@pytest.mark.parametrize("layout", [name for layouts in DEEP_LAYOUTS.values() for name in layouts if name != "deep"])
@pytest.mark.parametrize("figure", ["loss", "gradient_norm", "validation_loss"])
def test_interleaved_stages_equal_one_process(runs: dict[str, list[dict[str, Any]]], layout: str, figure: str) -> None:
    actual, single = ([line[figure] for line in runs[name] if line[figure] is not None] for name in (layout, "deep"))
    assert actual == pytest.approx(single, abs=1e-5 if figure != "gradient_norm" else 1e-4)


@pytest.mark.parametrize("name", RESUMED)
def test_run_resumes_in_another_layout(runs: dict[str, list[dict[str, Any]]], name: str) -> None:
    same_optimizer = "constant-muon" if "muon" in name else "constant"
    actual, single = ([line["loss"] for line in runs[each]] for each in (name, same_optimizer))
    assert actual == pytest.approx(single, abs=1e-4 if "muon" in name else 1e-5)


def test_export_equals_that_of_one_process(
    runs: dict[str, list[dict[str, Any]]], folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of an interleaved run, and by one process from its checkpoint."""
    uri = f"{folders['interleaved']}/checkpoints/step-{STEPS:08d}"
    monkeypatch.setattr("sys.argv", ["export", uri, str(tmp_path)])
    assert export_command.main() == 0
    actual, expected = (read_weights(each) for each in (folders["interleaved"] / "results/export", tmp_path))
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
