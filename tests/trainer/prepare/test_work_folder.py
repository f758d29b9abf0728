"""The work folder: results of a killed run are reused with the same settings only."""

from pathlib import Path

import pytest

from tests.problems import rejects
from trainer.prepare.partitioning import PartResult
from trainer.prepare.work_folder import WorkFolder, write_result
from trainyard.models.dataset import Shard

RESULT = PartResult(
    shard=Shard(key="a.bin", count=1, bytes=1, sha256="0" * 64), held_out=0, samples=1, empty_documents=0
)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A work folder in which part `x` is complete and another part is incomplete."""
    folder = tmp_path / "work"
    work = WorkFolder(folder, {"--field": "text"})
    write_result(folder, "x", RESULT)
    (work.temporary / "y.bin").write_bytes(b"half")
    work.close()
    return folder


def test_same_settings_resume(killed: Path) -> None:
    work = WorkFolder(killed, {"--field": "text"})
    assert work.status == f"resuming in {killed}"
    assert (work.read_result("x"), work.read_result("y")) == (RESULT, None)
    assert not list(work.temporary.iterdir())
    work.close()


def test_other_settings_start_from_scratch_with_a_message(killed: Path) -> None:
    work = WorkFolder(killed, {"--field": "body"})
    assert work.status == f"{killed} is of a run with other settings (--field): starting from scratch"
    assert work.read_result("x") is None
    assert work.obsolete_keys == {"a.bin"}
    work.close()


def test_work_folder_is_locked_by_one_process(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work", {})
    with rejects("work_folder_in_use"):
        WorkFolder(tmp_path / "work", {})
    work.close()


def test_folder_with_other_files_is_rejected_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with rejects("folder_not_empty"):
        WorkFolder(tmp_path, {})
    assert (tmp_path / "thesis.tex").exists()


def test_unwritable_work_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with rejects("folder_not_writable", "--work", "Not a directory"):
        WorkFolder(tmp_path / "file" / "work", {})
