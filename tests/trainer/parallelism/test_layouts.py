"""However a model and its batch are spread, the same seed and batch give the same losses and gradient norms."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import ROOT, TINY

# By number of processes. What is spread over the batch alone is 4 ranks; hsdp has 2 groups of 2.
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"alone": {}},
    2: {
        "pipeline": {"parallel": {"pipeline": 2}},
        "gpipe": {"parallel": {"pipeline": 2, "schedule": "gpipe"}},
        "fsdp-recomputed": {
            "parallel": {"data": "fsdp", "reshard_after_forward": False},
            "memory": {"activation_checkpointing": "selective", "loss_chunk": 7},
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
    },
}
# In fp16: with a loss scale that all ranks share.
HALVES: dict[str, dict[str, Any]] = {
    "fsdp-fp16": {"precision": "fp16", "parallel": {"data": "fsdp"}},
    "tensor-fp16": {"precision": "fp16", "parallel": {"tensor": 2}},
    "pipeline-fp16": {"precision": "fp16", "parallel": {"pipeline": 2}},
}
STEPS = 5


def config(changes: dict[str, Any]) -> dict[str, Any]:
    """With every gradient clipped."""
    optimizer = {**TINY["optimizer"], "clip_norm": 0.2}
    evaluation = {"every": STEPS, "batches": 2}
    return {**TINY, "batch_size": 16, "steps": STEPS, "optimizer": optimizer, "evaluation": evaluation, **changes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, dataset: Path, cache: Path) -> dict[str, list[dict[str, Any]]]:
    """The metric lines of each."""
    found = {}
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "DATA_URI": str(dataset),
        "TRAINYARD_CACHE": str(cache),
    }
    for processes, layouts in {**LAYOUTS, 2: LAYOUTS[2] | HALVES}.items():
        folder = tmp_path_factory.mktemp(f"on-{processes}")
        file = folder / "runs.json"
        file.write_text(json.dumps({str(folder / name): config(changes) for name, changes in layouts.items()}))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run(
            [*torchrun, "-m", "tests.trainer.layouts", str(file)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for name in layouts:
            text = (folder / name / "metrics/metrics.jsonl").read_text()
            found[name] = [json.loads(line) for line in text.splitlines()]
    return found


@pytest.mark.parametrize("layout", [name for layouts in LAYOUTS.values() for name in layouts])
def test_losses_are_those_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    found, alone = ([line["loss"] for line in runs[name]] for name in (layout, "alone"))
    assert len(found) == STEPS
    assert found == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("layout", [name for layouts in LAYOUTS.values() for name in layouts])
def test_held_out_losses_are_those_of_one_process(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    found, alone = (runs[name][-1]["validation_loss"] for name in (layout, "alone"))
    assert found == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("layout", [name for layouts in LAYOUTS.values() for name in layouts])
def test_gradients_are_clipped_by_the_norm_of_all(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    norms = [line["gradient_norm"] for line in runs[layout]]
    assert norms == pytest.approx([line["gradient_norm"] for line in runs["alone"]], rel=1e-4)
    assert min(norms) > 0.2


@pytest.mark.parametrize("layout", HALVES)
def test_fp16_is_near_fp32_in_every_layout(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    found, alone = runs[layout], runs["alone"]
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in alone], abs=0.01)
    norms = [line["gradient_norm"] for line in found]
    assert norms == pytest.approx([line["gradient_norm"] for line in alone], rel=0.05)
    assert not any(line["skipped"] for line in found)


@pytest.mark.parametrize("layout", ["pipeline", "gpipe"])
def test_a_pipelines_schedule_counts_as_backward(runs: dict[str, list[dict[str, Any]]], layout: str) -> None:
    for line in runs[layout]:
        assert line["forward_seconds"] == 0 < line["backward_seconds"]
