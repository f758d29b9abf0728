"""Durations of a step's phases."""

import time

import pytest
import torch

from trainer.telemetry.timing import PHASES, StepTimer, StepTimes


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The host's simulated clock."""
    seconds = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


def test_passes_of_a_phase_are_added(now: list[float]) -> None:
    timer = StepTimer(torch.device("cpu"))
    for _ in range(3):
        with timer.phase("forward"):
            now[0] += 2
        now[0] += 50  # between phases
        with timer.phase("backward"):
            now[0] += 4
    times = timer.finish()()
    assert times.phases == {"data": 0, "forward": 6, "backward": 12, "optimizer": 0}
    assert times.step == 3 * 56


def test_a_new_step_starts_at_zero(now: list[float]) -> None:
    timer = StepTimer(torch.device("cpu"))
    with timer.phase("forward"):
        now[0] += 2
    timer.start()
    assert timer.finish()() == StepTimes(step=0, phases=dict.fromkeys(PHASES, 0.0), waiting=0)


def test_times_are_those_of_the_finished_step(now: list[float]) -> None:
    """The times of a step may be read after the next step has started."""
    timer = StepTimer(torch.device("cpu"))
    with timer.phase("forward"):
        now[0] += 2
    read = timer.finish()
    timer.start()
    with timer.phase("forward"):
        now[0] += 7
    assert (read().step, read().phases["forward"]) == (2, 2)


def test_waiting_is_part_of_a_phase(now: list[float]) -> None:
    timer = StepTimer(torch.device("cpu"))
    with timer.phase("backward"):
        now[0] += 4
        with timer.waiting():
            now[0] += 2
    times = timer.finish()()
    assert (times.phases["backward"], times.waiting) == (6, 2)


def test_interrupted_pass_does_not_count(now: list[float]) -> None:
    timer = StepTimer(torch.device("cpu"))

    def fail() -> None:
        with timer.phase("forward"):
            now[0] += 9
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert timer.finish()().phases["forward"] == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA events need a GPU")
def test_gpu_work_counts_in_the_phase_that_started_it() -> None:
    device = torch.device("cuda")
    timer, matrix = StepTimer(device), torch.randn(4096, 4096, device=device)
    matrix @ matrix
    torch.cuda.synchronize()
    started = time.perf_counter()
    with timer.phase("forward"):
        for _ in range(100):
            matrix @ matrix
    host_seconds = time.perf_counter() - started
    with timer.phase("optimizer"):
        torch.cuda.synchronize()
    seconds = timer.finish()().phases
    assert seconds["forward"] > 2 * host_seconds
    assert seconds["optimizer"] < seconds["forward"]
