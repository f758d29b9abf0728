"""A model with experts has the losses and gradient norms of one process in each layout, as in test_layouts.py.

The balance loss is that of a micro-batch. Each has one sample, so that its samples are the same in each layout.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import ROOT, TINY
from tests.trainer.layouts import read_metrics, run_layouts

pytestmark = pytest.mark.slow

# On four ranks a pair has three experts: each rank of the pair's expert_shard has half of the rows of each.
EXPERTS = {"architecture": "qwen3_moe", "experts": 6, "experts_per_token": 2, "expert_intermediate_size": 16}
MODEL = {**TINY["model"], **EXPERTS, "router_aux_loss_coef": 0.1}
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"single": {}},
    2: {
        "expert": {"parallel": {"data": "fsdp", "expert": 2}},
        "expert-selective": {
            "parallel": {"data": "fsdp", "expert": 2, "reduce_per_step": True},
            "memory": {"activation_checkpointing": "selective", "loss_chunk_tokens": 7},
        },
    },
    4: {
        "ddp": {},
        "fsdp": {"parallel": {"data": "fsdp"}},
        "hsdp-full": {"parallel": {"data": "hsdp", "shard": 2}, "memory": {"activation_checkpointing": "full"}},
        "expert-and-fsdp": {"parallel": {"data": "fsdp", "expert": 2}},
        "expert-full": {
            "parallel": {"data": "fsdp", "expert": 2, "reshard_after_forward": False},
            "memory": {"activation_checkpointing": "full"},
        },
        "context-and-expert": {"parallel": {"data": "fsdp", "context": 2, "expert": 2}},
        "context": {"parallel": {"context": 2}},
    },
}
NAMES = [name for layouts in LAYOUTS.values() for name in layouts]
# Resumed on two ranks from a checkpoint of four: name -> expert parallel degrees before and after.
RESUMED = {"expert-to-none": (2, 1), "none-to-expert": (1, 2)}
STEPS, SAVED_STEP = 5, 3


def config(**changes: Any) -> dict[str, Any]:
    """Return the configuration of a run."""
    optimizer = {**TINY["optimizer"], "schedule": "constant"}
    evaluation = {"interval_steps": STEPS, "batches": 2}
    sizes = {"batch_size": 16, "micro_batch_size": 1, "steps": STEPS}
    return {**TINY, "model": MODEL, **sizes, "optimizer": optimizer, "evaluation": evaluation, **changes}


def resumed(degree: int, steps: int) -> dict[str, Any]:
    return config(parallel={"data": "fsdp", "expert": degree}, steps=steps)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, dataset: Path, cache: Path) -> dict[str, list[dict[str, Any]]]:
    """The metrics of each layout."""
    folder = tmp_path_factory.mktemp("experts")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DATA_URI": str(dataset), "TRAINYARD_CACHE": str(cache)}
    configs = {
        processes: {name: config(**changes) for name, changes in layouts.items()}
        for processes, layouts in LAYOUTS.items()
    }
    configs[4] |= {name: resumed(before, SAVED_STEP) for name, (before, _) in RESUMED.items()}
    for processes, each in configs.items():
        run_layouts(folder, processes, each, environment)
    run_layouts(folder, 2, {name: resumed(after, STEPS) for name, (_, after) in RESUMED.items()}, environment)
    return {name: read_metrics(folder / name) for name in (*NAMES, *RESUMED)}


@pytest.mark.parametrize("layout", [*NAMES, *RESUMED])
def test_losses_equal_those_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    actual, single = ([line["loss"] for line in runs[name]] for name in (layout, "single"))
    assert len(actual) == STEPS
    assert actual == pytest.approx(single, abs=1e-5)


@pytest.mark.parametrize("layout", [*NAMES, *RESUMED])
def test_validation_loss_equals_that_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    actual, single = (runs[name][-1]["validation_loss"] for name in (layout, "single"))
    assert actual == pytest.approx(single, abs=1e-5)


@pytest.mark.parametrize("layout", [*NAMES, *RESUMED])
def test_gradient_norm_equals_that_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    actual, single = ([line["gradient_norm"] for line in runs[name]] for name in (layout, "single"))
    assert actual == pytest.approx(single, rel=1e-4)


@pytest.mark.parametrize("layout", NAMES)
def test_expert_load_is_that_of_all_ranks(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    actual, single = ([line["expert_load_imbalance"] for line in runs[name]] for name in (layout, "single"))
    assert actual == pytest.approx(single, abs=0.02)
    assert all(1 < load < 6 for load in actual)
