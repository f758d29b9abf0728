"""The update of the weights, and figures that the host reads during the next step."""

import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

import trainer.loop
from tests.trainer.conftest import tiny
from trainer.checkpoints import Checkpoints, Progress
from trainer.loop import defers_reading_metrics, train
from trainer.settings import Environment
from trainer.step import StepFlags, StepOutcome, update_weights
from trainer.telemetry.metrics import Metrics

LOSS_SCALE = 4.0


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    return layer


def update(layer: nn.Linear, loss: float, norm: float) -> torch.optim.AdamW:
    parameters = list(layer.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True)
    values = torch.tensor(loss), torch.tensor(norm)
    update_weights(optimizer, parameters, *values, clip_norm=1.0, scale=LOSS_SCALE)
    return optimizer


@pytest.mark.parametrize(("norm", "factor"), [(2.0, 0.5), (0.5, 1.0)])
def test_gradients_are_clipped_and_divided_by_the_loss_scale(layer: nn.Linear, norm: float, factor: float) -> None:
    update(layer, 3.0, norm)
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, torch.full((2, 3), factor / LOSS_SCALE))


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (float("inf"), 1.0), (3.0, float("inf"))])
def test_a_step_that_is_not_finite_changes_nothing(layer: nn.Linear, loss: float, norm: float) -> None:
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    optimizer = update(layer, loss, norm)
    assert all(torch.equal(value, parameter) for value, parameter in zip(before, layer.parameters(), strict=True))
    assert {float(state["step"]) for state in optimizer.state.values()} == {0.0}


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        ("cuda", {}, True),
        ("cpu", {}, False),
        ("cuda", {"precision": "fp16"}, False),
        ("cuda", {"recovery": "in_process"}, False),
    ],
)
def test_figures_are_read_later_on_gpus(device: str, changes: dict[str, Any], expected: bool) -> None:
    assert defers_reading_metrics(tiny(**changes), torch.device(device)) is expected


def lines(environment: Environment) -> list[dict[str, Any]]:
    text = (environment.metrics_dir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def record_saves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Return a list that gets the step and the loss of each save."""
    saved: list[tuple[int, float]] = []
    save = Checkpoints.save

    def record(self: Any, state: Any) -> Any:
        progress: Progress = state.progress
        saved.append((progress.step, progress.last_loss))
        return save(self, state)

    monkeypatch.setattr(Checkpoints, "save", record)
    return saved


@pytest.mark.parametrize("reads_later", [False, True])
def test_metrics_are_those_of_their_steps(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, reads_later: bool
) -> None:
    """Also if the host reads them during the next step; a checkpoint contains the loss of its step."""
    monkeypatch.setattr(trainer.loop, "defers_reading_metrics", lambda *_: reads_later)
    saved = record_saves(monkeypatch)
    train(tiny(steps=7, checkpoint={"interval_steps": 3}, evaluation={"interval_steps": 2}), alone)
    written = lines(alone)
    assert [line["step"] for line in written] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["step"] for line in written if line["validation_loss"] is not None] == [2, 4, 6, 7]
    assert [line["consumed"] for line in written] == [number * tiny().batch_size for number in range(1, 8)]
    assert saved == [(step, written[step - 1]["loss"]) for step in (3, 6, 7)]


def delay_saves(monkeypatch: pytest.MonkeyPatch, last_step: int) -> None:
    """Report an outage of the storage up to a step: all saves are delayed until it is over."""
    all_reduce, steps = StepFlags.all_reduce, count(1)

    def in_outage(flags: Any, group: Any) -> StepFlags:
        return replace(all_reduce(flags, group), is_save_retried=next(steps) <= last_step)

    monkeypatch.setattr(StepFlags, "all_reduce", in_outage)


def test_a_delayed_save_contains_the_loss_of_its_step(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.loop, "defers_reading_metrics", lambda *_: True)
    delay_saves(monkeypatch, 4)
    saved = record_saves(monkeypatch)
    train(tiny(steps=8, checkpoint={"interval_steps": 3}, evaluation={"interval_steps": 20}), alone)
    losses = {line["step"]: line["loss"] for line in lines(alone)}
    assert saved == [(step, losses[step]) for step in (5, 6, 8)]


def test_no_step_is_waited_for_while_saves_are_delayed(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save is due at each of these steps."""
    monkeypatch.setattr(trainer.loop, "defers_reading_metrics", lambda *_: True)
    delay_saves(monkeypatch, 100)
    newest: list[int] = []
    record_step = Metrics.record_step

    def record(self: Any, outcome: StepOutcome, **values: Any) -> Any:
        newest.append(len(started) - outcome.step)
        return record_step(self, outcome, **values)

    started: list[int] = []

    def count_steps(*values: Any, **factors: Any) -> None:
        started.append(1)
        update_weights(*values, **factors)

    monkeypatch.setattr(Metrics, "record_step", record)
    monkeypatch.setattr(trainer.loop, "update_weights", count_steps)
    train(tiny(steps=6, checkpoint={"interval_steps": 1}, evaluation={"interval_steps": 20}), alone)
    assert newest == [1, 1, 1, 1, 1, 0]  # steps that had started after the recorded step


def test_losses_do_not_depend_on_when_they_are_read(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    losses = []
    for reads_later in (False, True):
        folder = tmp_path_factory.mktemp("run")
        monkeypatch.setattr(trainer.loop, "defers_reading_metrics", lambda *_, value=reads_later: value)
        environment = replace(
            alone,
            metrics_dir=folder / "metrics",
            checkpoint_uri=str(folder / "checkpoints"),
            results_uri=str(folder / "results"),
        )
        train(tiny(steps=5), environment)
        losses.append([(line["loss"], line["gradient_norm"]) for line in lines(environment)])
    assert losses[0] == losses[1]


def test_a_divergence_that_is_read_later_ends_the_job(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.loop, "defers_reading_metrics", lambda *_: True)
    optimizer = {"learning_rate": 1e30, "min_learning_rate": 0.0, "warmup_steps": 0, "clip_norm": 1e30}
    with pytest.raises(FloatingPointError, match="training has diverged"):
        train(tiny(steps=20, precision="fp32", optimizer=optimizer, evaluation={"interval_steps": 20}), alone)
