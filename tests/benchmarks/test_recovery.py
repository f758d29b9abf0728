"""Benchmark of recovery: what it reads from the metrics of a run."""

from benchmarks.recovery import Recovery, find_recoveries
from tests.metrics import metric


def test_recovery_is_the_time_between_the_steps_of_two_attempts() -> None:
    steps = [(1, 8, 10.0), (1, 9, 11.0), (2, 9, 14.5), (2, 10, 15.0), (3, 11, 17.0)]
    lines = [metric(step).model_copy(update={"attempt": attempt, "time": time}) for attempt, step, time in steps]
    assert find_recoveries(lines) == [Recovery(3.5, 1), Recovery(2.0, 0)]
