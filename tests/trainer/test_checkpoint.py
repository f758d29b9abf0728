"""Saving, finding and loading checkpoints, in one process with a group of its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from contract.base import InputError
from tests.trainer.conftest import tiny
from trainer import check, checkpoint
from trainer.checkpoint import Checkpoints, Progress, State
from trainer.loop import make_optimizer
from trainer.model import Transformer


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def state_after(step: int, **model: Any) -> State:
    """A state with a step of the optimizer behind it; `model` changes the model's shape."""
    torch.manual_seed(step)
    shape = tiny(model=tiny().model.model_dump() | model).model
    transformer = Transformer(shape)
    optimizer = make_optimizer(transformer, tiny().optimizer)
    tokens = torch.randint(0, 256, (1, 33))
    transformer(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()
    return State(model=transformer, optimizer=optimizer, progress=Progress(step, 8 * step, 5.5, 4.5), shape=shape)


@pytest.fixture
def place(tmp_path: Path, group: dist.ProcessGroup) -> Checkpoints:
    return Checkpoints(str(tmp_path), group)


def test_what_was_saved_is_loaded(place: Checkpoints) -> None:
    saved, loaded = state_after(3), state_after(1)
    uri = place.save(saved)
    generator = torch.get_rng_state()
    torch.rand(5)
    place.load(uri, loaded)
    assert loaded.progress == saved.progress
    assert torch.equal(torch.get_rng_state(), generator)
    for mine, theirs in zip(loaded.model.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for key, value in saved.optimizer.state[theirs].items():
            assert torch.equal(loaded.optimizer.state[mine][key], value)


def test_a_new_optimizer_takes_tensors_but_keeps_its_own_settings(place: Checkpoints) -> None:
    uri = place.save(state_after(3))
    fresh = state_after(1)
    optimizer = make_optimizer(fresh.model, tiny(optimizer={"weight_decay": 0.7}).optimizer)
    place.load(uri, State(model=fresh.model, optimizer=optimizer, progress=Progress(), shape=fresh.shape))
    assert optimizer.param_groups[0]["weight_decay"] == 0.7
    assert {float(values["step"]) for values in optimizer.state.values()} == {1.0}


def test_the_newest_complete_one_counts_and_incomplete_ones_do_not(place: Checkpoints, tmp_path: Path) -> None:
    assert place.newest() is None
    uris = [place.save(state_after(step)) for step in (9, 10, 11)]
    (tmp_path / "step-00000011/.metadata").unlink()
    assert place.newest() == uris[1]
    assert place.complete() == uris[:2]


def test_another_models_checkpoint_is_refused(place: Checkpoints) -> None:
    uri = place.save(state_after(1))
    with pytest.raises(InputError, match=r"holds embedding.weight as \(256, 32\), the model has \(256, 64\)"):
        place.load(uri, state_after(1, dim=64))
    with pytest.raises(InputError, match="was made with the model"):
        place.load(uri, state_after(1, rope_theta=500.0))


def test_check_says_what_it_loaded(place: Checkpoints) -> None:
    uri = place.save(state_after(3))
    parameters = sum(parameter.numel() for parameter in state_after(3).model.parameters())
    assert check.check(uri) == {"uri": uri, "step": 3, "parameters": parameters, "loadable": True}


def cut(folder: Path) -> None:
    data = folder / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])


def bare(folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()


def uncommitted(folder: Path) -> None:
    (folder / ".metadata").unlink()


def absent(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [cut, bare, uncommitted, absent])
def test_check_fails_on_a_damaged_checkpoint(
    place: Checkpoints, damage: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = place.save(state_after(3))
    damage(Path(uri))
    monkeypatch.setattr("sys.argv", ["check", uri])
    assert check.main() in (1, 2)
    told = capsys.readouterr()
    assert not told.out
    assert uri in told.err


def test_check_fails_on_weights_that_are_not_finite(place: Checkpoints) -> None:
    state = state_after(3)
    with torch.no_grad():
        next(state.model.parameters())[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"not finite: model\.embedding\.weight"):
        check.check(place.save(state))


def test_a_save_outlives_an_outage_of_s3(
    s3: Any, moto_server: Any, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 is back in the first pause, after the connector gave up: the save is tried again, whole."""
    pauses = []
    _, port = moto_server.get_host_and_port()

    def restart(seconds: float) -> None:
        pauses.append(seconds)
        moto_server._port = port  # the same server again: its state is this process's
        moto_server.start()

    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(sleep=restart))
    moto_server.stop()
    uri = Checkpoints("s3://runs/outage/", group).save(state_after(3))
    assert pauses == [checkpoint.PAUSES[0]]
    assert check.check(uri)["step"] == 3


def test_a_save_that_can_not_succeed_is_not_tried_again(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uri: str) -> Any:
        raise PermissionError(13, "Permission denied", uri)

    monkeypatch.setattr(checkpoint, "_writer", refuse)
    with pytest.raises(OSError, match="PermissionError"):
        Checkpoints(str(tmp_path), group).save(state_after(3))


def test_a_bucket_that_is_not_there_is_told(s3: Any) -> None:
    with pytest.raises(InputError, match=r"s3://nowhere/x/'?: there is no such bucket"):
        check.check("s3://nowhere/x/")


@pytest.mark.parametrize("object_", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_that_s3_has_archived_is_told_at_once(s3: Any, group: dist.ProcessGroup, object_: str) -> None:
    place = Checkpoints("s3://runs/archived/", group)
    uri = place.save(state_after(3))
    key = f"archived/step-00000003/{object_}"
    s3.copy_object(Bucket="runs", Key=key, CopySource=f"runs/{key}", StorageClass="DEEP_ARCHIVE")
    with pytest.raises(InputError) as told:
        place.load(uri, state_after(1))
    assert f"{told.value}".startswith(f"checkpoint = '{uri}': S3 has moved it to an archive class such as Deep Archive")
    assert "\n" not in f"{told.value}"
    s3.delete_object(Bucket="runs", Key=key)
