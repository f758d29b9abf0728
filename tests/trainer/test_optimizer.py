"""Optimizers and schedules of the learning rate."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.problems import rejects
from tests.trainer.conftest import tiny
from trainer.checkpoints import Progress, State
from trainer.models import Model, build
from trainer.muon import Muon
from trainer.optimizer import build_optimizer, learning_rate
from trainer.step import update_weights
from trainyard.config.training.config import OptimizerConfig

PEAK, FLOOR, STEPS = 1e-3, 1e-4, 20


def rates(steps: int = STEPS, **changes: Any) -> list[float]:
    config = OptimizerConfig(learning_rate=PEAK, min_learning_rate=FLOOR, warmup_steps=4, **changes)
    return [learning_rate(step, steps, config) for step in range(1, steps + 1)]


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_learning_rate_reaches_its_peak_after_warmup(schedule: str) -> None:
    assert rates(schedule=schedule)[:4] == pytest.approx([PEAK / 4, PEAK / 2, 3 * PEAK / 4, PEAK])


def test_cosine_decays_to_the_minimum() -> None:
    values = rates()
    assert values[4:] == sorted(values[4:], reverse=True)
    assert values[-1] == pytest.approx(FLOOR)


def test_wsd_decays_linearly_in_the_last_steps() -> None:
    values = rates(schedule="wsd", decay_steps=3)
    assert values[3:17] == [PEAK] * 14
    assert values[17:] == pytest.approx([PEAK - (PEAK - FLOOR) / 3, PEAK - 2 * (PEAK - FLOOR) / 3, FLOOR])


def test_wsd_decays_in_a_tenth_of_the_steps_by_default() -> None:
    values = rates(schedule="wsd")
    assert [value < PEAK for value in values[4:]] == [False] * 14 + [True] * 2


def test_a_longer_job_has_the_same_rates_before_the_decay() -> None:
    short, long = (rates(steps, schedule="wsd", decay_steps=5) for steps in (20, 40))
    assert short[:15] == long[:15]
    assert long[:35] == rates(40, schedule="constant")[:35]


@pytest.mark.parametrize(("schedule", "steps"), [("wsd", 5), ("wsd", 6), ("wsd", 60), ("cosine", 10), ("cosine", 60)])
def test_default_schedule_rises_and_ends_at_the_minimum(schedule: Any, steps: int) -> None:
    config = OptimizerConfig(schedule=schedule, warmup_steps=4 if steps < 10 else None)
    values = [learning_rate(step, steps, config) for step in range(1, steps + 1)]
    assert max(values) == pytest.approx(config.learning_rate)
    assert values[-1] == pytest.approx(config.learning_rate / 10)


def test_decay_steps_of_another_schedule_are_refused() -> None:
    with pytest.raises(ValidationError, match="is for the schedule wsd"):
        OptimizerConfig(decay_steps=3)


@pytest.fixture
def muon() -> tuple[Model, torch.optim.Optimizer]:
    """A model with gradients, and its optimizer."""
    model = build(tiny())
    model.module.to_empty(device="cpu")
    for parameter in model.module.parameters():
        torch.nn.init.ones_(parameter)
        parameter.grad = torch.randn_like(parameter)
    return model, build_optimizer(model, OptimizerConfig(kind="muon"))


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16)])
def test_muon_updates_as_that_of_torch(shape: tuple[int, int]) -> None:
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    own, of_torch = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    adjusted: Any = {"adjust_lr_fn": "match_rms_adamw"}
    optimizers = (
        Muon([own], learning_rate=0.02, weight_decay=0.1, momentum=0.95),
        torch.optim.Muon([of_torch], lr=0.02, weight_decay=0.1, momentum=0.95, **adjusted),
    )
    for step in range(3):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        own.grad, of_torch.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(own, of_torch, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(own, start, atol=0.01)


def test_muon_is_for_the_matrices_of_blocks(muon: tuple[Model, torch.optim.Optimizer]) -> None:
    model, optimizer = muon
    optimizer.step()
    state = State(model=model.module, optimizer=optimizer, progress=Progress(), shape={}).tensors()["optimizer"]
    with_muon = {name for name, values in state.items() if "momentum_buffer" in values}
    assert with_muon == {name for name in state if name.startswith("layers.") and "_proj." in name}
    assert {name for name, values in state.items() if "exp_avg" in values} == set(state) - with_muon
    assert set(state) == set(dict(model.module.named_parameters()))


def test_muon_skips_a_step_that_is_not_finite(muon: tuple[Model, torch.optim.Optimizer]) -> None:
    model, optimizer = muon
    parameters = list(model.module.parameters())
    gradients = [torch.randn_like(parameter) for parameter in parameters]

    def step(gradients: list[torch.Tensor], norm: float) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        update_weights(optimizer, parameters, torch.ones(()), torch.tensor(norm), clip_norm=1.0, scale=1.0)

    step(gradients, 1.0)
    before = [parameter.detach().clone() for parameter in parameters]
    state = copy.deepcopy(optimizer.state_dict()["state"])
    step([gradient * math.nan for gradient in gradients], math.nan)
    assert all(torch.equal(*pair) for pair in zip(parameters, before, strict=True))
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)
    step(gradients, 1.0)
    assert not any(torch.equal(*pair) for pair in zip(parameters, before, strict=True))


def test_muon_without_blocks_is_rejected(muon: tuple[Model, torch.optim.Optimizer]) -> None:
    with rejects("muon_without_matrices", "config.optimizer.kind", "Set it to adamw"):
        build_optimizer(dataclasses.replace(muon[0], blocks={}), OptimizerConfig(kind="muon"))


def test_groups_set_the_learning_rate_of_all_parameters(muon: tuple[Model, torch.optim.Optimizer]) -> None:
    model, optimizer = muon
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(bool((parameter == 1).all()) for parameter in model.module.parameters())
