"""Saving, finding and loading checkpoints in one process."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.checkpoints.states import Net, place, saved, state_after, state_of, stepped
from trainer.checkpoints import Checkpoints, State
from trainer.checkpoints.staging import Stager
from trainyard.base import InputError


@pytest.fixture(params=[True, False], ids=["asynchronous", "synchronous"])
def here(request: pytest.FixtureRequest, tmp_path: Path, group: dist.ProcessGroup) -> Iterator[Checkpoints]:
    with place(tmp_path, group, asynchronous=request.param) as checkpoints:
        yield checkpoints


def same(one: State, other: State) -> None:
    assert one.progress == other.progress
    assert one.scaler == other.scaler
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for key, value in other.optimizer.state[theirs].items():
            assert torch.equal(one.optimizer.state[mine][key], value)


def test_what_was_saved_is_loaded(here: Checkpoints) -> None:
    first, loaded = state_after(3), state_after(1)
    assert here.resume(loaded) is None
    (uri,) = saved(here, first)
    generator = torch.get_rng_state()
    torch.rand(5)
    assert here.resume(loaded) == uri
    same(loaded, first)
    assert torch.equal(torch.get_rng_state(), generator)


def test_what_is_saved_is_the_state_at_that_moment(here: Checkpoints) -> None:
    """The optimizer changes every tensor while it is written."""
    state, expected = state_after(3), state_after(3)
    here.save(state)
    for _ in range(3):
        state.model(torch.randn(4, 8)).backward()
        here.before_update()
        state.optimizer.step()
    state.progress.step = 6
    here.wait()
    loaded = state_after(1)
    here.resume(loaded)
    same(loaded, expected)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies wait for it."""
    may_begin, real = threading.Event(), Stager.stage

    def stage(self: Stager, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        copy = real(self, content)

        def held() -> dict[str, Any]:
            assert may_begin.wait(20)
            return copy()

        return held

    monkeypatch.setattr(Stager, "stage", stage)
    return may_begin


def test_an_update_waits_for_the_copy(tmp_path: Path, group: dist.ProcessGroup, copying: threading.Event) -> None:
    with place(tmp_path, group) as checkpoints, ThreadPoolExecutor(1) as other:
        checkpoints.save(state_after(3))
        update = other.submit(checkpoints.before_update)
        with pytest.raises(TimeoutError):
            update.result(timeout=0.2)
        copying.set()
        update.result(timeout=20)
        checkpoints.wait()


def test_buffers_are_saved_as_they_were(tmp_path: Path, group: dist.ProcessGroup, copying: threading.Event) -> None:
    """The next forward pass changes them while the rest is copied."""
    normalization = nn.BatchNorm1d(4)
    net = nn.Sequential(nn.Linear(8, 4), normalization)
    state = state_of(net)
    net(torch.randn(16, 8))
    expected = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with place(tmp_path, group) as checkpoints:
        checkpoints.save(state)
        net(torch.randn(16, 8))
        copying.set()
        checkpoints.before_update()
        checkpoints.wait()
        assert int(normalization.num_batches_tracked or 0) == 2
        checkpoints.resume(state)
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer, expected[name]), name


def test_each_save_is_told_once(here: Checkpoints) -> None:
    uris = [here.save(state_after(step)) for step in (1, 2, 3)]
    told = here.poll()
    told += here.wait()
    assert told == uris == here.complete()
    assert here.wait() == []


def test_time_lost_is_told_once(here: Checkpoints) -> None:
    saved(here, state_after(1))
    assert here.stalled() > 0
    assert here.stalled() == 0


def test_a_new_optimizer_takes_tensors_but_keeps_its_own_settings(here: Checkpoints) -> None:
    saved(here, state_after(3))
    fresh = state_of(Net())
    fresh.optimizer.param_groups[0]["weight_decay"] = 0.7
    here.resume(fresh)
    assert fresh.optimizer.param_groups[0]["weight_decay"] == 0.7
    assert {float(values["step"]) for values in fresh.optimizer.state.values()} == {1.0}


def test_ten_steps_and_ten_are_twenty(here: Checkpoints) -> None:
    def run(state: State, until: int) -> None:
        while state.progress.step < until:
            stepped(state.model, state.optimizer, 8)
            state.progress.step += 1

    straight = state_after(1)
    run(straight, 20)
    first = state_after(1)
    run(first, 10)
    saved(here, first)
    torch.manual_seed(99)
    resumed = state_after(7)
    here.resume(resumed)
    run(resumed, 20)
    same(resumed, straight)


def test_the_newest_complete_one_counts_and_incomplete_ones_do_not(here: Checkpoints, tmp_path: Path) -> None:
    uris = saved(here, *(state_after(step) for step in (9, 10, 11)))
    (tmp_path / "step-00000011/.metadata").unlink()
    assert here.complete() == uris[:2]
    assert here.resume(state_after(1)) == uris[1]


def test_another_run_is_continued_until_there_is_an_own_one(
    here: Checkpoints, tmp_path: Path, group: dist.ProcessGroup
) -> None:
    theirs = saved(here, state_after(5))
    with place(tmp_path / "own", group) as own:
        state = state_after(1)
        assert own.resume(state, str(tmp_path)) == theirs[0]
        mine = saved(own, state)
        assert own.resume(state, str(tmp_path)) == mine[0]


def test_a_run_without_checkpoints_is_not_continued(here: Checkpoints, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"RESUME_URI = .* holds no complete checkpoint"):
        here.resume(state_after(1), str(tmp_path / "empty"))


def test_another_models_checkpoint_is_refused(here: Checkpoints) -> None:
    saved(here, state_after(1))
    with pytest.raises(InputError, match=r"holds blocks.0.norm.weight as \(8,\), the model has \(16,\)"):
        here.resume(state_after(1, width=16))
    with pytest.raises(InputError, match="was made with another model: "):
        here.resume(state_after(1, shape={"kind": "decoder", "dim": 9}))


def test_a_failure_is_told_by_the_next_poll(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a save that can't succeed is not tried again."""
    tried = []

    def refuse(uri: str, **_: Any) -> Any:
        tried.append(uri)
        raise PermissionError(13, "Permission denied", uri)

    monkeypatch.setattr("trainer.checkpoints.writer.writer", refuse)
    with place(tmp_path, group) as checkpoints:
        checkpoints.save(state_after(3))
        with pytest.raises(OSError, match="PermissionError"):
            checkpoints.wait()
        assert len(tried) == 1
        assert checkpoints.poll() == []
