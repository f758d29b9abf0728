"""Schedules of the learning rate."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainer.optimizer import learning_rate
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


def test_decay_steps_of_another_schedule_are_refused() -> None:
    with pytest.raises(ValidationError, match="decay_steps is for the schedule wsd"):
        OptimizerConfig(decay_steps=3)
