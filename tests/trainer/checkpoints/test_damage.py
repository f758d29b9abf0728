"""Damaged checkpoints: each kind of damage is detected, reported in one line, and the checkpoint is skipped."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.problems import rejects
from tests.trainer.checkpoints.states import open_checkpoints, save_all, trained_state
from trainer import check_checkpoint
from trainer.checkpoints import failures

DATA, MARK = "__0_0.distcp", ".metadata"


def truncated(folder: Path) -> None:
    os.truncate(folder / DATA, (folder / DATA).stat().st_size - 1)


def missing(folder: Path) -> None:
    (folder / DATA).unlink()


def random_bytes(folder: Path) -> None:
    (folder / DATA).write_bytes(os.urandom((folder / DATA).stat().st_size))


def flipped_bit(folder: Path) -> None:
    """Flip a bit of one weight, which torch.load does not detect."""
    content = bytearray((folder / DATA).read_bytes())
    weight = trained_state(3).model.get_parameter("blocks.1.up.weight").detach().numpy().tobytes()
    content[content.index(weight) + 7] ^= 1
    (folder / DATA).write_bytes(content)


def truncated_metadata(folder: Path) -> None:
    os.truncate(folder / MARK, (folder / MARK).stat().st_size // 2)


def empty_metadata(folder: Path) -> None:
    (folder / MARK).write_bytes(b"")


def other_metadata(folder: Path) -> None:
    (folder / MARK).write_bytes(pickle.dumps({"state_dict_metadata": {}}))


DAMAGES = [
    truncated,
    missing,
    random_bytes,
    flipped_bit,
    truncated_metadata,
    empty_metadata,
    other_metadata,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped(
    damage: Callable[[Path], None], tmp_path: Path, group: dist.ProcessGroup, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = trained_state(1)
    with open_checkpoints(tmp_path, group) as checkpoints:
        older, newest = save_all(checkpoints, trained_state(2), trained_state(3))
        damage(Path(newest))
        caplog.clear()
        assert checkpoints.resume(loaded) == older
    (message,) = caplog.messages
    assert message.startswith(f"skipping checkpoint {newest}, which is damaged: ")
    assert loaded.progress.step == 2
    expected = trained_state(2)
    for parameter, reference in zip(loaded.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(parameter, reference)


def test_run_with_only_damaged_checkpoints_does_not_start_from_scratch(
    tmp_path: Path, group: dist.ProcessGroup
) -> None:
    with open_checkpoints(tmp_path, group) as checkpoints:
        (uri,) = save_all(checkpoints, trained_state(2))
        random_bytes(Path(uri))
        with rejects("checkpoints_damaged", "CHECKPOINT_URI"):
            checkpoints.resume(trained_state(1))


def test_damaged_checkpoint_is_overwritten(tmp_path: Path, group: dist.ProcessGroup) -> None:
    with open_checkpoints(tmp_path, group) as checkpoints:
        (uri,) = save_all(checkpoints, trained_state(2))
        random_bytes(Path(uri))
        save_all(checkpoints, trained_state(2))
        assert checkpoints.resume(trained_state(1)) == uri


def test_checkpoint_is_incomplete_while_it_is_overwritten(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a kill would leave files of both saves under the previous commit mark."""
    with open_checkpoints(tmp_path, group) as checkpoints:
        (uri,) = save_all(checkpoints, trained_state(2))

        def refuse(*_: Any, **__: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("trainer.checkpoints.writer.save", refuse)
        checkpoints.save(trained_state(2))
        with pytest.raises(OSError, match="PermissionError"):
            checkpoints.wait()
        assert checkpoints.list_complete() == []
        assert Path(uri).exists()


def without_commit_mark(folder: Path) -> None:
    (folder / MARK).unlink()


def deleted(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [*DAMAGES, without_commit_mark, deleted])
def test_check_fails_on_a_damaged_checkpoint(
    damage: Callable[[Path], None],
    tmp_path: Path,
    group: dist.ProcessGroup,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_checkpoints(tmp_path, group) as checkpoints:
        (uri,) = save_all(checkpoints, trained_state(3))
    damage(Path(uri))
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["check", uri])
    assert check_checkpoint.main() in (1, 2)
    result = json.loads(capsys.readouterr().out)
    assert (result["uri"], result["loadable"]) == (uri, False)
    assert result["error"]


def test_check_reports_the_loaded_checkpoint(tmp_path: Path, group: dist.ProcessGroup) -> None:
    state = trained_state(3)
    with open_checkpoints(tmp_path, group) as checkpoints:
        (uri,) = save_all(checkpoints, state)
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    assert check_checkpoint.check(uri) == {"uri": uri, "step": 3, "parameters": parameters, "loadable": True}


def test_check_fails_on_weights_that_are_not_finite(tmp_path: Path, group: dist.ProcessGroup) -> None:
    state = trained_state(3)
    with torch.no_grad():
        state.model.get_parameter("blocks.0.up.weight")[0, 0] = float("nan")
    with open_checkpoints(tmp_path, group) as checkpoints:
        (uri,) = save_all(checkpoints, state)
    with pytest.raises(ValueError, match=r"not finite: model\.blocks\.0\.up\.weight"):
        check_checkpoint.check(uri)


def test_unreadable_folder_is_not_treated_as_damage(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a wrong IAM role would lose the newest steps of a run."""

    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(failures, "RETRY_PAUSES_SECONDS", ())
    with open_checkpoints(tmp_path, group) as checkpoints:
        save_all(checkpoints, trained_state(2), trained_state(3))
        monkeypatch.setattr("trainer.storage.LocalStorage.read", refuse)
        with pytest.raises(OSError, match="PermissionError"):
            checkpoints.resume(trained_state(1))
