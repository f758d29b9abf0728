"""What ranks exchange in a step, and for how long they wait for it."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.trainer.conftest import ROOT
from tests.trainer.parallelism.exchange import RANKS, TIMEOUT
from trainer.failures.watch import PATIENCE


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("exchange") / "found.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    environment = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*torchrun, "-m", "tests.trainer.parallelism.exchange", str(file)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(file.read_text())
    return told


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hsdp"])
def test_gradients_are_exchanged_once_a_step(found: dict[str, Any], kind: str) -> None:
    """Not in each micro-batch. What gathers weights does not count: they are freed between micro-batches."""
    one, three = (
        {name: count for name, count in found[f"{kind} {micro_batches}"].items() if "gather" not in name}
        for micro_batches in (1, 3)
    )
    assert sum(one.values()) > 0
    assert one == three


def test_no_group_gives_up_before_the_watch_does(found: dict[str, Any]) -> None:
    (timeout,) = found["timeouts"]
    assert PATIENCE * TIMEOUT < timeout < PATIENCE * TIMEOUT + 60
