"""Retention of checkpoints, in a folder and in S3."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.trainer.checkpoints.states import open_checkpoints, save_all, trained_state
from trainer.checkpoints.retention import steps_to_delete
from trainyard.config.training.config import CheckpointConfig


@pytest.mark.parametrize(
    ("config", "deleted"),
    [
        ({}, []),
        ({"keep_last": 1}, [5, 10, 15, 20]),
        ({"keep_last": 3}, [5, 10]),
        ({"keep_last": 9}, []),
        ({"keep_last": 1, "keep_every_steps": 10}, [5, 15]),
        ({"keep_every_steps": 10}, []),
    ],
)
def test_retention_keeps_the_newest_and_every_nth_step(config: dict[str, int], deleted: list[int]) -> None:
    assert steps_to_delete([5, 10, 15, 20, 25], 25, CheckpointConfig.model_validate(config)) == deleted


def test_first_checkpoint_from_each_nth_step_on_is_kept() -> None:
    """Checkpoints that are due after seconds are at any step."""
    config = CheckpointConfig(keep_last=1, keep_every_steps=10)
    assert steps_to_delete([7, 13, 18, 24, 41, 45], 45, config) == [7, 18]
    assert steps_to_delete([13, 24, 41, 45], 45, config) == []


def test_later_damaged_checkpoint_is_not_counted_or_deleted() -> None:
    """Otherwise the damaged checkpoint would count as the newest, and undamaged checkpoints would be deleted."""
    assert steps_to_delete([5, 10, 20], 10, CheckpointConfig(keep_last=1)) == [5]


@pytest.mark.parametrize("where", ["folder", "S3"])
def test_checkpoints_that_are_not_retained_are_deleted_completely(
    where: str, tmp_path: Path, group: dist.ProcessGroup, s3: Any
) -> None:
    uri = str(tmp_path) if where == "folder" else "s3://runs/kept/"
    with open_checkpoints(uri, group, keep_last=2) as checkpoints:
        uris = save_all(checkpoints, *(trained_state(step) for step in (1, 2, 3, 4)))
        assert checkpoints.list_complete() == uris[2:]
    if where == "folder":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
    else:
        keys = {item["Key"] for item in s3.list_objects_v2(Bucket="runs", Prefix="kept/")["Contents"]}
        assert {key.split("/")[1] for key in keys} == {"step-00000003", "step-00000004"}


def test_incomplete_checkpoint_of_a_killed_save_is_deleted(tmp_path: Path, group: dist.ProcessGroup) -> None:
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002/__0_0.distcp").touch()
    (tmp_path / "notes").mkdir()
    with open_checkpoints(tmp_path, group, keep_last=2) as checkpoints:
        save_all(checkpoints, trained_state(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step-00000003"]


def test_failed_deletion_does_not_fail_the_run(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with open_checkpoints(tmp_path, group, keep_last=1) as checkpoints:
        save_all(checkpoints, trained_state(1))
        monkeypatch.setattr("trainer.storage.LocalStorage.delete_folder", refuse)
        assert len(save_all(checkpoints, trained_state(2))) == 1
    assert "old checkpoints not deleted" in caplog.text
