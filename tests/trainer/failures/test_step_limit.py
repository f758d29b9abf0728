"""Time limit of a training step."""

import pytest

from trainer.failures.step_limit import MINIMUM_LIMIT_SECONDS, StepLimit
from trainyard.config.training.config import TimeoutsConfig


def limit_after(*step_seconds: float, **config: float) -> float:
    limit = StepLimit(TimeoutsConfig.model_validate(config))
    for seconds in step_seconds:
        limit.record(seconds)
    return limit.seconds


def test_first_step_has_its_own_limit() -> None:
    assert limit_after(first_step_seconds=700) == limit_after(first_step_seconds=700, step_seconds=5) == 700


def test_limit_is_ten_times_the_median_of_recent_steps() -> None:
    compilation = 100.0
    assert limit_after(compilation, 20, 21, 19, 20) == pytest.approx(200)
    assert limit_after(*[5.0] * 50, *[20.0] * 50) == pytest.approx(200)  # steps have become longer


def test_limit_has_bounds() -> None:
    assert limit_after(0.1, 0.1) == MINIMUM_LIMIT_SECONDS
    assert limit_after(90, 90, first_step_seconds=600) == 600


def test_explicit_limit_ignores_measured_steps() -> None:
    assert limit_after(90, 90, step_seconds=8) == 8


def test_process_groups_time_out_after_the_longest_limit() -> None:
    assert TimeoutsConfig(step_seconds=5000).longest_seconds == 5000
    assert TimeoutsConfig(setup_seconds=4000).longest_seconds == 4000
