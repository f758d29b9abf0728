"""When a checkpoint is due."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainer.checkpoints.cadence import (
    MAXIMUM_INTERVAL_SECONDS,
    MINIMUM_INTERVAL_SECONDS,
    Cadence,
    SaveTimes,
    optimum_interval,
)
from trainyard.config.training.config import CheckpointConfig

HOUR = 3600.0
LLAMA_3_NODES = 16_384 // 8


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def due_after(cadence: Cadence, clock: Clock, first_step: int = 1) -> float:
    """Return the seconds until a checkpoint is due, in steps of a second, and start its save."""
    started_at, step = clock.now, first_step
    while not cadence.is_due(step):
        clock.now, step = clock.now + 1, step + 1
    cadence.record_start()
    return clock.now - started_at


def create_cadence(clock: Clock, nodes: int = 1, **config: Any) -> Cadence:
    return Cadence(CheckpointConfig.model_validate(config), nodes, clock)


@pytest.mark.parametrize(
    ("mean_minutes", "work_minutes"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)], ids=["24 h", "6 h", "15 min"]
)
def test_optimum_is_that_of_the_paper(mean_minutes: float, work_minutes: float) -> None:
    """Figures 3 to 5 of Daly (2006), for saves of 5 minutes; the interval of the paper does not include the save."""
    assert optimum_interval(5, mean_minutes) - 5 == pytest.approx(work_minutes, abs=0.5)


def test_saves_that_take_longer_than_twice_the_time_between_failures() -> None:
    assert optimum_interval(25, 10) == 35
    assert optimum_interval(19.999, 10) == pytest.approx(optimum_interval(20, 10), rel=0.05)


def test_default_rate_of_failures_is_that_of_llama_3() -> None:
    failures = 54 * 24 * LLAMA_3_NODES / CheckpointConfig().mean_hours_between_failures
    assert failures == pytest.approx(419, rel=0.01)


def test_first_save_is_early_and_its_measured_time_sets_the_interval() -> None:
    clock = Clock()
    cadence = create_cadence(clock, LLAMA_3_NODES)
    assert due_after(cadence, clock) == MINIMUM_INTERVAL_SECONDS
    cadence.record_times(SaveTimes(stall_seconds=2, seconds=30))
    mean = CheckpointConfig().mean_hours_between_failures * HOUR / LLAMA_3_NODES
    assert due_after(cadence, clock) == pytest.approx(optimum_interval(2, mean), abs=1)


def test_more_nodes_save_more_often() -> None:
    clock = Clock()
    few, many = create_cadence(clock, 256), create_cadence(clock, 1024)
    for cadence in (few, many):
        cadence.record_times(SaveTimes(stall_seconds=2, seconds=3))
    assert few.interval_seconds == pytest.approx(2 * many.interval_seconds, rel=0.01)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (SaveTimes(stall_seconds=0.0, seconds=1), MINIMUM_INTERVAL_SECONDS),
        (SaveTimes(stall_seconds=60, seconds=90), MAXIMUM_INTERVAL_SECONDS),
        (SaveTimes(stall_seconds=0.0, seconds=200), 200),  # saves do not overlap
        (SaveTimes(stall_seconds=60, seconds=4000), 4000),
    ],
)
def test_interval_has_bounds(times: SaveTimes, expected: float) -> None:
    cadence = create_cadence(Clock())
    cadence.record_times(times)
    assert cadence.interval_seconds == expected


def test_one_slow_save_has_no_effect() -> None:
    cadence = create_cadence(Clock(), 1024)
    for _ in range(4):
        cadence.record_times(SaveTimes(stall_seconds=1, seconds=20))
    before = cadence.interval_seconds
    cadence.record_times(SaveTimes(stall_seconds=50, seconds=500))
    assert cadence.interval_seconds == before


def test_explicit_seconds_ignore_the_failure_rate_and_the_bounds() -> None:
    clock = Clock()
    cadence = create_cadence(clock, interval_seconds=10)
    assert [due_after(cadence, clock) for _ in range(2)] == [10, 10]
    cadence.record_times(SaveTimes(stall_seconds=0.1, seconds=25))
    assert due_after(cadence, clock) == 25


def test_requested_save_starts_a_new_interval() -> None:
    clock = Clock()
    cadence = create_cadence(clock, interval_seconds=10)
    assert not cadence.is_due(1)
    clock.now += 9
    cadence.record_start()
    clock.now += 9
    assert not cadence.is_due(2)


def test_time_before_the_first_step_does_not_count() -> None:
    clock = Clock()
    cadence = create_cadence(clock)
    clock.now += HOUR
    assert not cadence.is_due(1)


def test_explicit_steps_ignore_the_clock() -> None:
    clock = Clock()
    cadence = create_cadence(clock, interval_steps=3)
    clock.now += HOUR
    assert [step for step in range(1, 8) if cadence.is_due(step)] == [3, 6]


def test_two_explicit_intervals_are_rejected() -> None:
    with pytest.raises(ValidationError, match="interval_steps 5 and interval_seconds 60"):
        CheckpointConfig(interval_steps=5, interval_seconds=60)
