"""Saving, listing and loading checkpoints in a single process."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.polling import eventually
from tests.problems import rejects
from tests.trainer.checkpoints.states import Net, create_state, open_checkpoints, save_all, train_step, trained_state
from trainer.checkpoints import Checkpoints, State
from trainer.checkpoints import failures as failures_module
from trainer.checkpoints import writer as writer_module
from trainer.checkpoints.cadence import SaveTimes
from trainer.checkpoints.failures import RefusedError
from trainer.checkpoints.files import create_storage_writer
from trainer.checkpoints.manager import FINAL_ATTEMPTS
from trainer.checkpoints.staging import Stager
from trainer.checkpoints.writer import Writer


@pytest.fixture(params=[True, False], ids=["asynchronous", "synchronous"])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path, group: dist.ProcessGroup) -> Iterator[Checkpoints]:
    with open_checkpoints(tmp_path, group, asynchronous=request.param) as checkpoints:
        yield checkpoints


def require_same(state: State, expected: State) -> None:
    assert state.progress == expected.progress
    assert state.scaler == expected.scaler
    for parameter, reference in zip(state.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(parameter, reference)
        for key, value in expected.optimizer.state[reference].items():
            assert torch.equal(state.optimizer.state[parameter][key], value)


def test_saved_state_is_loaded(checkpoints: Checkpoints) -> None:
    first, loaded = trained_state(3), trained_state(1)
    assert checkpoints.resume(loaded) is None
    (uri,) = save_all(checkpoints, first)
    generator = torch.get_rng_state()
    torch.rand(5)
    assert checkpoints.resume(loaded) == uri
    require_same(loaded, first)
    assert torch.equal(torch.get_rng_state(), generator)


def test_checkpoint_has_the_state_at_the_time_of_the_save(checkpoints: Checkpoints) -> None:
    """The optimizer changes every tensor while the checkpoint is written."""
    state, expected = trained_state(3), trained_state(3)
    checkpoints.save(state)
    for _ in range(3):
        state.model(torch.randn(4, 8)).backward()
        checkpoints.wait_for_staging()
        state.optimizer.step()
    state.progress.step = 6
    checkpoints.wait()
    loaded = trained_state(1)
    checkpoints.resume(loaded)
    require_same(loaded, expected)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that all copies wait for."""
    may_start, original = threading.Event(), Stager.stage

    def stage(self: Stager, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        copy = original(self, content)

        def delayed() -> dict[str, Any]:
            assert may_start.wait(20)
            return copy()

        return delayed

    monkeypatch.setattr(Stager, "stage", stage)
    return may_start


def test_update_waits_for_the_copy(tmp_path: Path, group: dist.ProcessGroup, copying: threading.Event) -> None:
    with open_checkpoints(tmp_path, group) as checkpoints, ThreadPoolExecutor(1) as other:
        checkpoints.save(trained_state(3))
        update = other.submit(checkpoints.wait_for_staging)
        with pytest.raises(TimeoutError):
            update.result(timeout=0.2)
        copying.set()
        update.result(timeout=20)
        checkpoints.wait()


def test_buffers_are_saved_with_their_values_before_the_next_forward_pass(
    tmp_path: Path, group: dist.ProcessGroup, copying: threading.Event
) -> None:
    """The next forward pass changes them while the other tensors are copied."""
    normalization = nn.BatchNorm1d(4)
    net = nn.Sequential(nn.Linear(8, 4), normalization)
    state = create_state(net)
    net(torch.randn(16, 8))
    expected = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with open_checkpoints(tmp_path, group) as checkpoints:
        checkpoints.save(state)
        net(torch.randn(16, 8))
        copying.set()
        checkpoints.wait_for_staging()
        checkpoints.wait()
        assert int(normalization.num_batches_tracked or 0) == 2
        checkpoints.resume(state)
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer, expected[name]), name


def test_each_save_is_returned_once(checkpoints: Checkpoints) -> None:
    uris = [checkpoints.save(trained_state(step)) for step in (1, 2, 3)]
    complete = checkpoints.poll()
    complete += checkpoints.wait()
    assert complete == uris == checkpoints.list_complete()
    assert checkpoints.wait() == []


def test_stall_seconds_are_returned_once(checkpoints: Checkpoints) -> None:
    save_all(checkpoints, trained_state(1))
    assert checkpoints.pop_stall_seconds() > 0
    assert checkpoints.pop_stall_seconds() == 0


def measured_times(
    folder: Path,
    group: dist.ProcessGroup,
    *,
    asynchronous: bool,
    saves: int = 1,
    before_staging: Callable[[], None] = lambda: None,
) -> list[SaveTimes]:
    """Return the measured times of saves after which training waits for the copy."""
    measured: list[SaveTimes] = []
    writer = Writer(group, asynchronous=asynchronous, record_times=measured.append)
    for number in range(saves):
        writer.save(trained_state(3), f"{folder}/{number}/", lambda: None, lambda: None)
        before_staging()
        writer.wait_for_staging()
        writer.wait()
    writer.close()
    return measured


def test_stall_and_duration_of_a_save_are_measured(
    tmp_path: Path, group: dist.ProcessGroup, copying: threading.Event
) -> None:
    timer = threading.Timer(0.2, copying.set)
    (times,) = measured_times(tmp_path, group, asynchronous=True, before_staging=timer.start)
    assert times.stall_seconds > 0.1
    assert times.seconds > 0.1


def test_synchronous_save_delays_training_until_it_is_complete(tmp_path: Path, group: dist.ProcessGroup) -> None:
    (times,) = measured_times(tmp_path, group, asynchronous=False)
    assert 0 < times.seconds == times.stall_seconds


def test_failed_save_is_not_measured(tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    Storage(monkeypatch, 1, OUTAGE)
    assert len(measured_times(tmp_path, group, asynchronous=True, saves=2)) == 1


def test_first_rank_decides_when_a_save_is_due(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_checkpoints(tmp_path, group, interval_steps=2) as checkpoints:
        assert [step for step in range(1, 6) if checkpoints.is_due(step)] == [2, 4]
        with monkeypatch.context() as patch:
            patch.setattr(dist, "get_rank", lambda group: 1)
            assert not any(checkpoints.is_due(step) for step in range(1, 6))


def test_new_optimizer_loads_tensors_and_keeps_its_hyperparameters(checkpoints: Checkpoints) -> None:
    save_all(checkpoints, trained_state(3))
    fresh = create_state(Net())
    fresh.optimizer.param_groups[0]["weight_decay"] = 0.7
    checkpoints.resume(fresh)
    assert fresh.optimizer.param_groups[0]["weight_decay"] == 0.7
    assert {float(values["step"]) for values in fresh.optimizer.state.values()} == {1.0}


def test_resumed_run_equals_uninterrupted_run(checkpoints: Checkpoints) -> None:
    def run(state: State, until: int) -> None:
        while state.progress.step < until:
            train_step(state.model, state.optimizer, 8)
            state.progress.step += 1

    straight = trained_state(1)
    run(straight, 20)
    first = trained_state(1)
    run(first, 10)
    save_all(checkpoints, first)
    torch.manual_seed(99)
    resumed = trained_state(7)
    checkpoints.resume(resumed)
    run(resumed, 20)
    require_same(resumed, straight)


def test_newest_complete_checkpoint_is_loaded_and_incomplete_checkpoints_are_ignored(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    uris = save_all(checkpoints, *(trained_state(step) for step in (9, 10, 11)))
    (tmp_path / "step-00000011/.metadata").unlink()
    assert checkpoints.list_complete() == uris[:2]
    assert checkpoints.resume(trained_state(1)) == uris[1]


def test_resume_uri_is_used_until_the_run_has_a_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path, group: dist.ProcessGroup
) -> None:
    other_uris = save_all(checkpoints, trained_state(5))
    with open_checkpoints(tmp_path / "new", group) as checkpoints:
        state = trained_state(1)
        assert checkpoints.resume(state, str(tmp_path)) == other_uris[0]
        uris = save_all(checkpoints, state)
        assert checkpoints.resume(state, str(tmp_path)) == uris[0]


def test_resume_uri_without_checkpoints_is_rejected(checkpoints: Checkpoints, tmp_path: Path) -> None:
    with rejects("checkpoint_missing", "RESUME_URI"):
        checkpoints.resume(trained_state(1), str(tmp_path / "empty"))


def test_checkpoint_of_another_model_is_rejected(checkpoints: Checkpoints) -> None:
    save_all(checkpoints, trained_state(1))
    with rejects("checkpoint_of_another_model", "blocks.0.norm.weight", "(8,)", "(16,)"):
        checkpoints.resume(trained_state(1, width=16))
    with rejects("checkpoint_of_another_model"):
        checkpoints.resume(trained_state(1, shape={"kind": "decoder", "dim": 9}))


def test_checkpoint_of_another_optimizer_is_rejected(checkpoints: Checkpoints) -> None:
    save_all(checkpoints, trained_state(1))
    state = trained_state(1)
    state.optimizer.state[state.model.get_parameter("blocks.0.up.weight")]["momentum_buffer"] = torch.zeros(16, 8)
    with rejects("checkpoint_of_another_optimizer", "blocks.0.up.weight", "momentum_buffer", "optimizer.kind"):
        checkpoints.resume(state)


class Storage:
    """Creates storage writers, of which the first `failures` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int, error: OSError) -> None:
        self.attempts, self._failures, self._error = 0, failures, error
        monkeypatch.setattr(writer_module, "create_storage_writer", self._create)
        monkeypatch.setattr(failures_module, "RETRY_PAUSES_SECONDS", ())

    def _create(self, uri: str, **options: Any) -> Any:
        self.attempts += 1
        if self.attempts <= self._failures:
            raise self._error
        return create_storage_writer(uri, **options)


OUTAGE = TimeoutError("S3 does not respond")


def test_failed_save_does_not_end_training(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Storage(monkeypatch, 1, OUTAGE)
    with open_checkpoints(tmp_path, group) as checkpoints:
        checkpoints.save(trained_state(3))
        second = checkpoints.save(trained_state(4))
        assert checkpoints.wait() == [second]
        assert checkpoints.failed_saves == 1
    assert "checkpoint not saved, training continues" in caplog.text


def test_last_save_is_repeated(tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    Storage(monkeypatch, 3, OUTAGE)
    state, retries = trained_state(3), list[int]()
    with open_checkpoints(tmp_path, group) as checkpoints:
        uri = checkpoints.save(state)
        assert checkpoints.finish(state, lambda: retries.append(1)) == [uri]
    assert len(retries) == 3


def test_last_save_fails_after_its_attempts(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(monkeypatch, 100, OUTAGE)
    state = trained_state(3)
    with open_checkpoints(tmp_path, group) as checkpoints:
        checkpoints.save(state)
        with pytest.raises(OSError, match="S3 does not respond"):
            checkpoints.finish(state)
    assert storage.attempts == FINAL_ATTEMPTS


def test_refused_first_save_is_an_error(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other save would succeed, so that training would be lost."""
    storage = Storage(monkeypatch, 100, PermissionError(13, "Permission denied"))
    with open_checkpoints(tmp_path, group) as checkpoints:
        checkpoints.save(trained_state(3))
        with pytest.raises(RefusedError, match="PermissionError"):
            checkpoints.wait()
    assert storage.attempts == 1


def test_storage_that_refuses_a_later_save_does_not_end_training(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_checkpoints(tmp_path, group) as checkpoints:
        checkpoints.save(trained_state(3))
        checkpoints.wait()
        Storage(monkeypatch, 1, PermissionError(13, "Permission denied"))
        checkpoints.save(trained_state(4))
        third = checkpoints.save(trained_state(5))
        assert checkpoints.wait() == [third]


def test_repeated_save_is_reported_until_it_ends(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, responding = threading.Event(), threading.Event()

    def create(uri: str, **options: Any) -> Any:
        if not reached.is_set():
            reached.set()
            raise OUTAGE
        assert responding.wait(60)
        return create_storage_writer(uri, **options)

    monkeypatch.setattr(writer_module, "create_storage_writer", create)
    monkeypatch.setattr(failures_module, "RETRY_PAUSES_SECONDS", (0,))
    with open_checkpoints(tmp_path, group) as checkpoints:
        uri = checkpoints.save(trained_state(3))
        eventually(lambda: checkpoints.is_retrying, "the second attempt")
        responding.set()
        assert checkpoints.wait() == [uri]
        assert not checkpoints.is_retrying
