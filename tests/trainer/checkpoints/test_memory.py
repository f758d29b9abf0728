"""Copies of the state in host memory: damaged and incomplete files, too little memory, and several nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.trainer.checkpoints.memory_ranks import STEPS
from tests.trainer.checkpoints.states import trained_state
from tests.trainer.conftest import ROOT
from trainer.checkpoints import Checkpoints, State, memory
from trainer.checkpoints.memory import MemoryCopies
from trainer.checkpoints.memory_file import MemoryFile, metadata_file
from trainyard.config.training.config import CheckpointConfig


def open_memory(folder: Path, group: dist.ProcessGroup, interval: int | None = 1) -> MemoryCopies:
    return MemoryCopies(folder, group, CheckpointConfig(memory_interval_steps=interval), 0, 1)


def copy(copies: MemoryCopies, state: State) -> None:
    copies.prepare(state)
    copies.save(state)
    copies.wait_for_staging()
    copies.close()


def weights(state: State) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in state.model.parameters()]


def load(folder: Path, group: dist.ProcessGroup, state: State, newest: int | None = None) -> int | None:
    copies = open_memory(folder, group)
    try:
        return copies.load(state, newest)
    finally:
        copies.close()


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if metadata_file(file).exists())


def test_copy_has_weights_optimizer_progress_and_generators(tmp_path: Path, group: dist.ProcessGroup) -> None:
    saved = trained_state(3)
    copy(open_memory(tmp_path, group), saved)
    generator = torch.rand(2)
    loaded = trained_state(8)
    assert load(tmp_path, group, loaded) == 3
    assert torch.equal(torch.rand(2), generator)
    assert loaded.values() == saved.values()
    for name, tensors in saved.tensors()["optimizer"].items():
        for key, tensor in tensors.items():
            assert torch.equal(loaded.tensors()["optimizer"][name][key], tensor)
    assert all(map(torch.equal, weights(loaded), weights(saved)))


def test_damaged_file_is_not_loaded(tmp_path: Path, group: dist.ProcessGroup, caplog: pytest.LogCaptureFixture) -> None:
    copy(open_memory(tmp_path, group), trained_state(3))
    content = bytearray(files(tmp_path)[1].read_bytes())
    content[-1] ^= 1
    files(tmp_path)[1].write_bytes(content)
    state = trained_state(8)
    before = weights(state)
    assert load(tmp_path, group, state) is None
    assert "the CRC-32 of" in caplog.text
    assert state.progress.step == 8
    assert all(map(torch.equal, weights(state), before))


def test_shortened_file_is_not_loaded(tmp_path: Path, group: dist.ProcessGroup) -> None:
    copy(open_memory(tmp_path, group), trained_state(3))
    files(tmp_path)[1].write_bytes(b"")
    assert load(tmp_path, group, trained_state(8)) is None


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]"])
def test_incomplete_metadata_does_not_count(tmp_path: Path, group: dist.ProcessGroup, content: bytes) -> None:
    copy(open_memory(tmp_path, group), trained_state(3))
    for file in files(tmp_path):
        metadata_file(file).write_bytes(content)
    assert load(tmp_path, group, trained_state(8)) is None


def test_file_does_not_count_while_it_is_overwritten(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path / "file", 64)
    metadata_file(file.path).write_text("{}")
    file.stage({"x": torch.zeros(2)})
    assert not metadata_file(file.path).exists()


def test_copy_of_another_model_is_not_loaded(tmp_path: Path, group: dist.ProcessGroup) -> None:
    copy(open_memory(tmp_path, group), trained_state(3))
    assert load(tmp_path, group, trained_state(8, width=16)) is None
    assert load(tmp_path, group, trained_state(8, shape={"kind": "other"})) is None


def test_previous_copy_remains_until_the_next_is_complete(tmp_path: Path, group: dist.ProcessGroup) -> None:
    copy(open_memory(tmp_path, group), trained_state(3))
    copies, state = open_memory(tmp_path, group), trained_state(8)
    assert copies.load(state, None) == 3
    copies.prepare(state)
    state.progress.step = 4
    copies.save(state)
    copies.wait_for_staging()
    copies.close()
    steps = {json.loads(metadata_file(file).read_text())["step"] for file in files(tmp_path)}
    assert steps == {3, 4}


def test_state_that_does_not_fit_is_not_copied(
    tmp_path: Path, group: dist.ProcessGroup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(open_memory(tmp_path, group), trained_state(3))
    monkeypatch.setattr(memory, "MEMORY_SHARE", 1e-9)
    copies = open_memory(tmp_path, group)
    copies.prepare(trained_state(3))
    copies.close()
    assert "no copies of the state in host memory: a node needs" in caplog.text
    assert (copies.is_due(1), list(tmp_path.iterdir())) == (False, [])


def test_failed_allocation_switches_the_copies_off(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    copies = open_memory(tmp_path, group)
    copies.prepare(trained_state(3))
    copies.close()
    assert (copies.is_due(1), list(tmp_path.iterdir())) == (False, [])


def test_default_interval_limits_the_delay_of_training(tmp_path: Path, group: dist.ProcessGroup) -> None:
    copies, state = open_memory(tmp_path, group, None), trained_state(3)
    assert not copies.is_due(1), "not before the files are allocated"
    copies.prepare(state)
    assert copies.is_due(1)
    copies.save(state)
    copies.wait_for_staging()
    assert copies._due_at >= copies._started_at + copies._stall_seconds / memory.STALL_SHARE
    copies.close()


@pytest.mark.parametrize(("in_memory", "in_storage", "loaded"), [(3, 3, "memory"), (4, 3, "memory"), (3, 4, "storage")])
def test_newer_of_memory_and_storage_is_loaded(
    tmp_path: Path, group: dist.ProcessGroup, in_memory: int, in_storage: int, loaded: str
) -> None:
    copy(open_memory(tmp_path / "memory", group), trained_state(in_memory))
    with Checkpoints(str(tmp_path / "storage"), group, CheckpointConfig()) as checkpoints:
        checkpoints.save(trained_state(in_storage))
        checkpoints.wait()
    state, copies = trained_state(8), open_memory(tmp_path / "memory", group)
    with Checkpoints(str(tmp_path / "storage"), group, CheckpointConfig(), memory=copies) as checkpoints:
        uri = checkpoints.resume(state)
        assert uri is not None
        assert checkpoints.contains(uri)
        assert checkpoints.is_copy_due(state.progress.step)
    assert (uri.startswith("memory:"), state.progress.step) == (loaded == "memory", max(in_memory, in_storage))


@pytest.mark.slow
def test_nodes_agree_on_a_step_and_exchange_lost_files(tmp_path: Path) -> None:
    """Two nodes with two ranks each: replaced and swapped nodes, damaged and missing files."""
    command = [sys.executable, "-m", "tests.trainer.checkpoints.memory_ranks", str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    expected: dict[str, tuple[int | None, bool]] = dict.fromkeys(outcomes, (STEPS, True))
    expected |= dict.fromkeys(("damaged", "lost-newest"), (STEPS - 1, True))
    expected |= dict.fromkeys(("all-lost", "older-than-checkpoint"), (None, False))
    assert outcomes == {name: [list(each)] * 4 for name, each in expected.items()}
