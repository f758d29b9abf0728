"""Several ranks: bytes that each rank writes and reads, and loads in another layout."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import ROOT
from trainer.checkpoints.files import read_metadata
from trainer.checkpoints.reader import read_state_dict

pytestmark = pytest.mark.slow


def run_scenario(scenario: str, folder: Path) -> dict[str, list[int]]:
    command = [sys.executable, "-m", "tests.trainer.checkpoints.ranks", scenario, str(folder)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert process.returncode == 0, process.stderr
    outcome: dict[str, list[int]] = json.loads((folder / "outcome.json").read_text())
    (folder / "log").write_text(process.stdout + process.stderr)
    return outcome


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    outcome = run_scenario("layouts", folder)
    assert not any(status for statuses in outcome.values() for status in statuses), (folder / "log").read_text()
    return folder


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failures")
    run_scenario("failures", folder)
    return folder


def read_checkpoint(folder: Path, name: str) -> dict[str, Any]:
    return read_state_dict(str(folder / name / "step-00000003"))


def require_equal(expected: dict[str, Any], actual: dict[str, Any]) -> None:
    common = {name for name in expected if not name.startswith("generators.")}
    assert common == {name for name in actual if not name.startswith("generators.")}
    for name in common:
        value = expected[name]
        assert torch.equal(value, actual[name]) if isinstance(value, torch.Tensor) else value == actual[name], name


@pytest.mark.parametrize("layout", ["ddp", "hsdp", "pipeline"])
def test_each_layout_loads_equal_tensors(layouts: Path, layout: str) -> None:
    """FSDP on 4 ranks -> DDP on 2 -> HSDP on 2 x 2, and DDP -> two stages of a pipeline."""
    expected, actual = read_checkpoint(layouts, "fsdp"), read_checkpoint(layouts, layout)
    require_equal(expected, actual)


def test_all_replicas_receive_the_tensors_that_one_rank_read(layouts: Path) -> None:
    expected = read_checkpoint(layouts, "fsdp")
    for rank in range(2):
        saved = torch.load(layouts / f"ddp-{rank}.pt")
        for name, tensor in saved["state"].items():
            assert torch.equal(tensor, expected[f"model.{name}"]), name
        assert torch.equal(saved["generator"], expected[f"generators.{rank}.cpu"])


@pytest.mark.parametrize(("name", "files"), [("results", 5), ("stages", 2)])
def test_sharded_and_pipelined_models_are_exported_completely(layouts: Path, name: str, files: int) -> None:
    """FSDP on 4 ranks, in files of at most 600 bytes or one tensor, and two pipeline stages, each with its own file."""
    folder = layouts / name / "export"
    exported = {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}
    expected = {
        key.removeprefix("model."): v for key, v in read_checkpoint(layouts, "fsdp").items() if key.startswith("model.")
    }
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[key], value) for key, value in expected.items())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in expected.values())
    assert index["weight_map"].keys() == expected.keys()
    assert len(set(index["weight_map"].values())) == len(list(folder.glob("*.safetensors"))) == files


def reads(folder: Path, name: str) -> list[Counter[str]]:
    """Return the number of reads of each entry, by rank."""
    return [Counter(path.read_text().splitlines()) for path in sorted(folder.glob(f"{name}-*.reads"))]


def test_replicas_read_each_byte_once(layouts: Path) -> None:
    (counts,) = reads(layouts, "ddp")
    assert set(counts.values()) == {1}
    entries = read_metadata(str(layouts / "fsdp/step-00000003")).storage_data
    others = {name for index in entries if (name := index.fqn).startswith(("generators.2", "generators.3"))}
    assert len(counts) == len(entries) - len(others)


def test_two_shard_groups_read_each_byte_once_in_total(layouts: Path) -> None:
    """Each of four ranks needs half of each tensor, which two ranks have saved as a whole."""
    first, second = reads(layouts, "hsdp")
    assert set((first + second).values()) == {1}
    entries = read_metadata(str(layouts / "ddp/step-00000003")).storage_data
    assert len(first + second) == len(entries)
    tensors = [sum(1 for line in counts if ".distcp" in line) for counts in (first, second)]
    assert min(tensors) > 0.3 * max(tensors)


@pytest.mark.parametrize("layout", ["ddp", "hsdp"])
def test_replicas_write_each_byte_once_and_share_the_work(layouts: Path, layout: str) -> None:
    folder = layouts / layout / "step-00000003"
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.distcp")}
    entries = read_metadata(str(folder)).storage_data.values()
    assert sum(sizes.values()) == sum(entry.length for entry in entries)
    assert len(sizes) == {"ddp": 2, "hsdp": 4}[layout]
    assert max(sizes.values()) < 1.6 * min(
        sizes.values()
    )  # values that are no tensors, a kilobyte each, are not divided


def test_all_ranks_skip_a_checkpoint_that_one_rank_finds_damaged(failures: Path) -> None:
    assert [(failures / f"damaged-{rank}").read_text() for rank in range(2)] == ["1", "1"]
    log = (failures / "log").read_text()
    assert log.count("step-00000002/, which is damaged: __1_0.distcp") == 1


def test_damage_in_a_shared_entry_is_reported_on_all_ranks(failures: Path) -> None:
    assert [(failures / f"shared-{rank}").read_text() for rank in range(2)] == ["1", "1"]
    assert (failures / "log").read_text().count("step-00000002/, which is damaged: __") == 2


@pytest.mark.parametrize(
    ("name", "reloaded"), [("read_failure", "read_failure_reloaded"), ("copy_failure", "copy_failure_reloaded")]
)
def test_all_ranks_retry_after_one_rank_fails_to_read_or_to_copy(failures: Path, name: str, reloaded: str) -> None:
    assert [(failures / f"{name}-{rank}").read_text() for rank in range(2)] == ["False", "True"]
    expected, actual = read_checkpoint(failures, name), read_checkpoint(failures, reloaded)
    require_equal(expected, actual)


def test_kill_during_a_save_keeps_the_previous_checkpoint_the_newest(failures: Path) -> None:
    outcome = json.loads((failures / "outcome.json").read_text())
    assert outcome["killed"] == [1, -9]
    assert (failures / "killed/step-00000002/__1_0.distcp").exists()
    assert [(failures / f"resumed-{rank}").read_text() for rank in range(2)] == ["1", "1"]
