"""Snapshots of the GPU allocator. No GPU is needed: torch's two functions are replaced."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import tiny
from trainer.failures import memory_snapshot as module
from trainer.failures.memory_snapshot import MemorySnapshot, memory_snapshot
from trainer.failures.out_of_memory import OutOfMemoryError, explain_out_of_memory
from trainer.storage import LocalStorage, Storage
from trainyard.config.training.parallel import Layout

CPU, SINGLE = torch.device("cpu"), Layout(pipeline=1, replicate=1, shard=1, tensor=1, accumulation=2)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments with which recording was started."""
    arguments: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: arguments.append(options))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: Path(file).write_bytes(b"snapshot"))
    return arguments


def message(results: Storage, error: Exception) -> str:
    """Return the message of a job on rank 3 that fails with `error`."""

    def fail() -> None:
        snapshot = MemorySnapshot(results, 3)
        with explain_out_of_memory(tiny(), SINGLE, CPU, "rank 3", 1000, snapshot):
            raise error

    with pytest.raises(OutOfMemoryError) as caught:
        fail()
    return str(caught.value)


def test_snapshot_is_in_the_results_and_the_message_names_it(recorded: list[dict[str, Any]], tmp_path: Path) -> None:
    results = LocalStorage(str(tmp_path), "RESULTS_URI")
    text = message(results, torch.OutOfMemoryError("CUDA out of memory"))
    assert f"\nAllocations, for pytorch.org/memory_viz: {tmp_path}/profiles/memory-rank-3.pickle\n" in text
    assert (tmp_path / "profiles/memory-rank-3.pickle").read_bytes() == b"snapshot"
    (options,) = recorded
    assert options["max_entries"] <= 100_000  # torch's default has no limit


def test_host_memory_has_no_snapshot(recorded: list[dict[str, Any]], tmp_path: Path) -> None:
    assert "Allocations" not in message(LocalStorage(str(tmp_path), "RESULTS_URI"), MemoryError())
    assert not list(tmp_path.iterdir())


def test_snapshot_that_cannot_be_saved_is_logged(
    recorded: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("a file instead of a folder")
    text = message(LocalStorage(str(file), "RESULTS_URI"), torch.OutOfMemoryError("CUDA out of memory"))
    assert "Allocations" not in text
    assert f"{file}/profiles/memory-rank-3.pickle not saved: " in caplog.text


def test_the_message_does_not_wait_for_a_blocked_storage(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    response = threading.Event()

    class Blocked(LocalStorage):
        def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
            response.wait(60)

    monkeypatch.setattr(module, "UPLOAD_TIMEOUT_SECONDS", 0.1)
    assert "Settings that reduce memory" in message(Blocked("s3", "R"), torch.OutOfMemoryError("CUDA out of memory"))
    assert "not saved: no response within 0 s" in caplog.text
    response.set()


def test_only_gpus_are_recorded(tmp_path: Path) -> None:
    results = LocalStorage(str(tmp_path), "RESULTS_URI")
    assert memory_snapshot(results, 0, CPU, enabled=True) is None
    assert memory_snapshot(results, 0, torch.device("cuda", 0), enabled=False) is None
    assert memory_snapshot(results, 0, torch.device("cuda", 0), enabled=True) is not None
