"""Collectives of a step, and timeouts of process groups."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.trainer.conftest import ROOT
from tests.trainer.parallelism.exchange import RANKS, SLOW_SECONDS, TIMEOUT


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("exchange") / "results.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    environment = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.run(
        [*torchrun, "-m", "tests.trainer.parallelism.exchange", str(file)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def counts(results: dict[str, Any], kind: str) -> list[dict[str, int]]:
    """The collectives of a step of one and of three micro-batches, without gathers of weights."""
    return [
        {name: count for name, count in results[f"{kind} {micro_batches}"].items() if "gather" not in name}
        for micro_batches in (1, 3)
    ]


@pytest.mark.parametrize("kind", ["ddp", "fsdp per step", "hsdp", "hsdp per step"])
def test_gradients_are_reduced_once_per_step(results: dict[str, Any], kind: str) -> None:
    """The shard groups of hsdp have one rank here, so that only its all-reduce over replicas is counted."""
    single, triple = counts(results, kind)
    assert sum(single.values()) > 0
    assert single == triple


def test_fsdp_scatters_gradients_of_each_micro_batch(results: dict[str, Any]) -> None:
    """Otherwise each rank accumulates the gradients of the whole model."""
    single, triple = counts(results, "fsdp")
    assert sum(single.values()) > 0
    assert triple == {name: 3 * count for name, count in single.items()}


def test_slow_rank_waits_less_than_its_peer(results: dict[str, Any]) -> None:
    """Its samples are late."""
    fast, slow = results["waiting"]
    assert fast > 0.7 * SLOW_SECONDS
    assert slow < 0.5 * fast


def test_process_group_timeout_exceeds_watchdog_limits(results: dict[str, Any]) -> None:
    (timeout,) = results["timeouts"]
    assert TIMEOUT < timeout < TIMEOUT + 60
