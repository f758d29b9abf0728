"""The update of the weights, and figures that the host reads during the next step."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

import trainer.loop
from tests.trainer.conftest import tiny
from trainer.checkpoints import Checkpoints, Progress
from trainer.loop import reads_figures_later, train
from trainer.settings import Environment
from trainer.step import Limits, StepFlags, update_weights

LIMITS = Limits(clip_norm=1.0, loss_scale=4.0)
NO_FLAGS = StepFlags(**dict.fromkeys((each.name for each in fields(StepFlags)), False))


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
    update_weights(optimizer, parameters, torch.tensor(loss), torch.tensor(norm), LIMITS)
    return optimizer


@pytest.mark.parametrize(("norm", "factor"), [(2.0, 0.5), (0.5, 1.0)])
def test_gradients_are_clipped_and_divided_by_the_loss_scale(layer: nn.Linear, norm: float, factor: float) -> None:
    update(layer, 3.0, norm)
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, torch.full((2, 3), factor / LIMITS.loss_scale))


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (float("inf"), 1.0), (3.0, float("inf"))])
def test_a_step_that_is_not_finite_changes_nothing(layer: nn.Linear, loss: float, norm: float) -> None:
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    optimizer = update(layer, loss, norm)
    assert all(torch.equal(value, parameter) for value, parameter in zip(before, layer.parameters(), strict=True))
    assert {float(state["step"]) for state in optimizer.state.values()} == {0.0}


@pytest.mark.parametrize("name", ["is_termination_requested", "is_save_requested", "is_save_due", "is_copy_due"])
def test_a_step_before_a_save_needs_its_figures(name: str) -> None:
    assert not NO_FLAGS.need_figures
    assert StepFlags(**{**vars(NO_FLAGS), name: True}).need_figures


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
    assert reads_figures_later(tiny(**changes), torch.device(device)) is expected


def lines(environment: Environment) -> list[dict[str, Any]]:
    text = (environment.metrics_dir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("reads_later", [False, True])
def test_metrics_are_those_of_their_steps(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, reads_later: bool
) -> None:
    """Also if the host reads them during the next step; a checkpoint contains the loss of its step."""
    monkeypatch.setattr(trainer.loop, "reads_figures_later", lambda *_: reads_later)
    saved: list[tuple[int, float]] = []
    save = Checkpoints.save

    def record(self: Any, state: Any) -> Any:
        progress: Progress = state.progress
        saved.append((progress.step, progress.last_loss))
        return save(self, state)

    monkeypatch.setattr(Checkpoints, "save", record)
    train(tiny(steps=7, checkpoint={"interval_steps": 3}, evaluation={"interval_steps": 2}), alone)
    written = lines(alone)
    assert [line["step"] for line in written] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["step"] for line in written if line["validation_loss"] is not None] == [2, 4, 6, 7]
    assert [line["consumed"] for line in written] == [number * tiny().batch_size for number in range(1, 8)]
    assert saved == [(step, written[step - 1]["loss"]) for step in (3, 6, 7)]


def test_losses_do_not_depend_on_when_they_are_read(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    losses = []
    for reads_later in (False, True):
        folder = tmp_path_factory.mktemp("run")
        monkeypatch.setattr(trainer.loop, "reads_figures_later", lambda *_, value=reads_later: value)
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
    monkeypatch.setattr(trainer.loop, "reads_figures_later", lambda *_: True)
    optimizer = {"learning_rate": 1e30, "min_learning_rate": 0.0, "warmup_steps": 0, "clip_norm": 1e30}
    with pytest.raises(FloatingPointError, match="training has diverged"):
        train(tiny(steps=20, precision="fp32", optimizer=optimizer, evaluation={"interval_steps": 20}), alone)
