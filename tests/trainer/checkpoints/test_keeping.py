"""Which checkpoints stay, in a folder and in S3."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.trainer.checkpoints.states import place, saved, state_after
from trainer.checkpoints.keeping import surplus
from trainyard.config.training.config import CheckpointConfig


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ({}, []),
        ({"keep": 1}, [5, 10, 15, 20]),
        ({"keep": 3}, [5, 10]),
        ({"keep": 9}, []),
        ({"keep": 1, "keep_every": 10}, [5, 15]),
        ({"keep_every": 10}, []),
    ],
)
def test_the_newest_and_one_every_so_many_steps_stay(rule: dict[str, int], gone: list[int]) -> None:
    assert surplus([5, 10, 15, 20, 25], 25, CheckpointConfig.model_validate(rule)) == gone


def test_a_later_damaged_one_neither_counts_nor_goes() -> None:
    """Else the rule would delete the good ones for its sake."""
    assert surplus([5, 10, 20], 10, CheckpointConfig(keep=1)) == [5]


@pytest.mark.parametrize("where", ["folder", "S3"])
def test_what_the_rule_leaves_out_is_deleted_whole(
    where: str, tmp_path: Path, group: dist.ProcessGroup, s3: Any
) -> None:
    uri = str(tmp_path) if where == "folder" else "s3://runs/kept/"
    with place(uri, group, keep=2) as checkpoints:
        uris = saved(checkpoints, *(state_after(step) for step in (1, 2, 3, 4)))
        assert checkpoints.complete() == uris[2:]
    if where == "folder":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
    else:
        keys = {item["Key"] for item in s3.list_objects_v2(Bucket="runs", Prefix="kept/")["Contents"]}
        assert {key.split("/")[1] for key in keys} == {"step-00000003", "step-00000004"}


def test_what_a_killed_save_left_goes_too(tmp_path: Path, group: dist.ProcessGroup) -> None:
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002/__0_0.distcp").touch()
    (tmp_path / "notes").mkdir()
    with place(tmp_path, group, keep=2) as checkpoints:
        saved(checkpoints, state_after(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step-00000003"]


def test_a_deletion_that_fails_ends_no_run(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with place(tmp_path, group, keep=1) as checkpoints:
        saved(checkpoints, state_after(1))
        monkeypatch.setattr("trainer.storage.Folder.delete_folder", refuse)
        assert len(saved(checkpoints, state_after(2))) == 1
    assert "warning: old checkpoints not deleted" in capsys.readouterr().out
