"""Damaged checkpoints: each kind of damage is noticed, told in one line, and passed over."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.checkpoints.states import place, saved, state_after
from trainer import check
from trainer.checkpoints import failures
from trainyard.base import InputError

DATA, MARK = "__0_0.distcp", ".metadata"


def cut(folder: Path) -> None:
    os.truncate(folder / DATA, (folder / DATA).stat().st_size - 1)


def gone(folder: Path) -> None:
    (folder / DATA).unlink()


def garbage(folder: Path) -> None:
    (folder / DATA).write_bytes(os.urandom((folder / DATA).stat().st_size))


def one_bit(folder: Path) -> None:
    """Of one weight: what torch.load does not notice."""
    content = bytearray((folder / DATA).read_bytes())
    weight = state_after(3).model.get_parameter("blocks.1.up.weight").detach().numpy().tobytes()
    content[content.index(weight) + 7] ^= 1
    (folder / DATA).write_bytes(content)


def half_a_mark(folder: Path) -> None:
    os.truncate(folder / MARK, (folder / MARK).stat().st_size // 2)


def empty_mark(folder: Path) -> None:
    (folder / MARK).write_bytes(b"")


def another_mark(folder: Path) -> None:
    (folder / MARK).write_bytes(pickle.dumps({"state_dict_metadata": {}}))


DAMAGES = [cut, gone, garbage, one_bit, half_a_mark, empty_mark, another_mark]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over(
    damage: Callable[[Path], None], tmp_path: Path, group: dist.ProcessGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = state_after(1)
    with place(tmp_path, group) as checkpoints:
        older, newest = saved(checkpoints, state_after(2), state_after(3))
        damage(Path(newest))
        capsys.readouterr()
        assert checkpoints.resume(loaded) == older
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"warning: checkpoint {newest} is damaged and passed over: ")
    assert loaded.progress.step == 2
    expected = state_after(2)
    for mine, theirs in zip(loaded.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew_unasked(
    tmp_path: Path, group: dist.ProcessGroup
) -> None:
    with place(tmp_path, group) as checkpoints:
        (uri,) = saved(checkpoints, state_after(2))
        garbage(Path(uri))
        with pytest.raises(InputError, match=r"CHECKPOINT_URI = .*: all its complete checkpoints are damaged"):
            checkpoints.resume(state_after(1))


def test_a_damaged_one_is_written_over(tmp_path: Path, group: dist.ProcessGroup) -> None:
    with place(tmp_path, group) as checkpoints:
        (uri,) = saved(checkpoints, state_after(2))
        garbage(Path(uri))
        saved(checkpoints, state_after(2))
        assert checkpoints.resume(state_after(1)) == uri


def test_what_is_written_over_does_not_count_meanwhile(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a kill would leave half of each under the old commit mark."""
    with place(tmp_path, group) as checkpoints:
        (uri,) = saved(checkpoints, state_after(2))

        def refuse(*_: Any, **__: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("trainer.checkpoints.writer.save", refuse)
        checkpoints.save(state_after(2))
        with pytest.raises(OSError, match="PermissionError"):
            checkpoints.wait()
        assert checkpoints.complete() == []
        assert Path(uri).exists()


def uncommitted(folder: Path) -> None:
    (folder / MARK).unlink()


def absent(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [*DAMAGES, uncommitted, absent])
def test_check_fails_on_a_damaged_checkpoint(
    damage: Callable[[Path], None],
    tmp_path: Path,
    group: dist.ProcessGroup,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with place(tmp_path, group) as checkpoints:
        (uri,) = saved(checkpoints, state_after(3))
    damage(Path(uri))
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["check", uri])
    assert check.main() in (1, 2)
    told = capsys.readouterr()
    assert not told.out
    assert uri in told.err


def test_check_says_what_it_loaded(tmp_path: Path, group: dist.ProcessGroup) -> None:
    state = state_after(3)
    with place(tmp_path, group) as checkpoints:
        (uri,) = saved(checkpoints, state)
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    assert check.check(uri) == {"uri": uri, "step": 3, "parameters": parameters, "loadable": True}


def test_check_fails_on_weights_that_are_not_finite(tmp_path: Path, group: dist.ProcessGroup) -> None:
    state = state_after(3)
    with torch.no_grad():
        state.model.get_parameter("blocks.0.up.weight")[0, 0] = float("nan")
    with place(tmp_path, group) as checkpoints:
        (uri,) = saved(checkpoints, state)
    with pytest.raises(ValueError, match=r"not finite: model\.blocks\.0\.up\.weight"):
        check.check(uri)


def test_a_folder_that_may_not_be_read_is_no_damage(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a wrong role would cost a run its newest steps."""

    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(failures, "PAUSES", ())
    with place(tmp_path, group) as checkpoints:
        saved(checkpoints, state_after(2), state_after(3))
        monkeypatch.setattr("trainer.storage.Folder.read", refuse)
        with pytest.raises(OSError, match="PermissionError"):
            checkpoints.resume(state_after(1))
