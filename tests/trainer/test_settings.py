"""Bad input ends with one clear message and status 2, before torch is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contract.base import InputError
from tests.trainer.conftest import ROOT, TINY
from trainer.settings import Environment, read_config

PLACES = {"DATA_URI": "/d", "CHECKPOINT_URI": "/c", "RESULTS_URI": "/r"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stepz": 3}, "config.stepz = 3: no such key"),
        ({"steps": "many"}, "config.steps = 'many'"),
        ({"model": {"dim": 33}}, "dim 33 must be an even multiple of heads"),
        ({"batch_size": 9}, "batch_size 9 is not a multiple of micro_batch_size 2 x 2 processes"),
    ],
)
def test_a_wrong_configuration_is_told(tmp_path: Path, change: dict[str, object], why: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY | change))
    with pytest.raises(InputError, match=why):
        read_config(file, world_size=2)


def test_a_configuration_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_config(tmp_path / "none.json", world_size=1)


def test_every_missing_variable_is_told() -> None:
    with pytest.raises(InputError) as raised:
        Environment.read({"CHECKPOINT_URI": "/c", "RANK": "first"})
    assert [problem.key for problem in raised.value.problems] == ["DATA_URI", "RESULTS_URI", "RANK"]


def test_torchruns_variables_are_read() -> None:
    found = Environment.read(PLACES | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    assert (found.rank, found.local_rank, found.world_size, found.local_world_size) == (3, 1, 4, 2)


def test_the_program_ends_with_status_2_and_one_message(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{not json")
    program = [sys.executable, "-X", "importtime", "-m", "trainer", "--config", str(file)]
    ended = subprocess.run(program, env=PLACES | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    told = [line for line in ended.stderr.splitlines() if not line.startswith("import time:")]
    assert ended.returncode == 2
    assert len(told) == 1
    assert "Invalid JSON" in told[0]
    assert " torch\n" not in ended.stderr
