"""Several ranks: what each writes and reads, and from one layout to another."""

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
from trainer.checkpoints.reader import load_whole


def ran(scenario: str, folder: Path) -> dict[str, list[int]]:
    command = [sys.executable, "-m", "tests.trainer.checkpoints.ranks", scenario, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, list[int]] = json.loads((folder / "outcome.json").read_text())
    (folder / "log").write_text(done.stdout + done.stderr)
    return outcome


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    outcome = ran("layouts", folder)
    assert not any(status for statuses in outcome.values() for status in statuses), (folder / "log").read_text()
    return folder


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failures")
    ran("failures", folder)
    return folder


def whole(folder: Path, name: str) -> dict[str, Any]:
    return load_whole(str(folder / name / "step-00000003"))


def require_equal(expected: dict[str, Any], found: dict[str, Any]) -> None:
    common = {name for name in expected if not name.startswith("generators.")}
    assert common == {name for name in found if not name.startswith("generators.")}
    for name in common:
        value = expected[name]
        assert torch.equal(value, found[name]) if isinstance(value, torch.Tensor) else value == found[name], name


@pytest.mark.parametrize("layout", ["ddp", "hsdp", "pipeline"])
def test_each_layout_goes_on_with_equal_tensors(layouts: Path, layout: str) -> None:
    """FSDP on 4 ranks -> DDP on 2 -> HSDP on 2 x 2, and DDP -> two stages of a pipeline."""
    expected, found = whole(layouts, "fsdp"), whole(layouts, layout)
    require_equal(expected, found)


def test_all_replicas_hold_what_one_has_read(layouts: Path) -> None:
    expected = whole(layouts, "fsdp")
    for rank in range(2):
        found = torch.load(layouts / f"ddp-{rank}.pt")
        for name, tensor in found["state"].items():
            assert torch.equal(tensor, expected[f"model.{name}"]), name
        assert torch.equal(found["generator"], expected[f"generators.{rank}.cpu"])


@pytest.mark.parametrize(("name", "files"), [("results", 5), ("stages", 2)])
def test_sharded_and_staged_models_are_exported_whole(layouts: Path, name: str, files: int) -> None:
    """FSDP on 4 ranks into files of at most 600 bytes or one tensor, and two stages, each with a file of its own."""
    folder = layouts / name / "export"
    found = {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}
    expected = {key.removeprefix("model."): v for key, v in whole(layouts, "fsdp").items() if key.startswith("model.")}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in expected.values())
    assert index["weight_map"].keys() == expected.keys()
    assert len(set(index["weight_map"].values())) == len(list(folder.glob("*.safetensors"))) == files


def reads(folder: Path, name: str) -> list[Counter[str]]:
    found = []
    for path in sorted(folder.glob(f"{name}-*.reads")):
        found.append(Counter(path.read_text().splitlines()))
    return found


def test_replicas_read_each_byte_once(layouts: Path) -> None:
    (alone,) = reads(layouts, "ddp")
    assert set(alone.values()) == {1}
    entries = read_metadata(str(layouts / "fsdp/step-00000003")).storage_data
    others = {rank for index in entries if (rank := index.fqn).startswith(("generators.2", "generators.3"))}
    assert len(alone) == len(entries) - len(others)


def test_of_two_shard_groups_one_reads_each_byte_once(layouts: Path) -> None:
    """Of what two ranks saved whole each of the four wants half."""
    first, second = reads(layouts, "hsdp")
    assert set((first + second).values()) == {1}
    entries = read_metadata(str(layouts / "ddp/step-00000003")).storage_data
    assert len(first + second) == len(entries)
    tensors = [sum(1 for line in each if ".distcp" in line) for each in (first, second)]
    assert min(tensors) > 0.3 * max(tensors)


@pytest.mark.parametrize("layout", ["ddp", "hsdp"])
def test_replicas_write_each_byte_once_and_share_the_work(layouts: Path, layout: str) -> None:
    folder = layouts / layout / "step-00000003"
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.distcp")}
    entries = read_metadata(str(folder)).storage_data.values()
    assert sum(sizes.values()) == sum(entry.length for entry in entries)
    assert len(sizes) == {"ddp": 2, "hsdp": 4}[layout]
    assert max(sizes.values()) < 1.6 * min(sizes.values())  # words, a kilobyte each, are not cut


def test_all_ranks_pass_over_what_one_finds_damaged(failures: Path) -> None:
    assert [(failures / f"damaged-{rank}").read_text() for rank in range(2)] == ["1", "1"]
    log = (failures / "log").read_text()
    assert log.count("step-00000002/ is damaged and passed over: __1_0.distcp") == 1


def test_what_one_rank_reads_for_all_is_damaged_for_all(failures: Path) -> None:
    assert [(failures / f"shared-{rank}").read_text() for rank in range(2)] == ["1", "1"]
    assert (failures / "log").read_text().count("step-00000002/ is damaged and passed over: __") == 2


@pytest.mark.parametrize(("name", "after"), [("away", "back"), ("full", "taken")])
def test_where_one_rank_fails_to_read_or_to_take_all_begin_again(failures: Path, name: str, after: str) -> None:
    assert [(failures / f"{name}-{rank}").read_text() for rank in range(2)] == ["False", "True"]
    expected, found = whole(failures, name), whole(failures, after)
    require_equal(expected, found)


def test_a_rank_killed_in_a_save_leaves_the_older_one_the_newest(failures: Path) -> None:
    outcome = json.loads((failures / "outcome.json").read_text())
    assert outcome["killed"] == [1, -9]
    assert (failures / "killed/step-00000002/__1_0.distcp").exists()
    assert [(failures / f"resumed-{rank}").read_text() for rank in range(2)] == ["1", "1"]
