"""A step's time, phase by phase."""

import time

import pytest
import torch

from trainer.telemetry.timing import Clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The host's clock, which the test moves."""
    at = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: at[0])
    return at


def test_passes_of_a_phase_add_up_and_a_reading_begins_anew(now: list[float]) -> None:
    clock = Clock(torch.device("cpu"))
    for _ in range(3):
        with clock.phase("forward"):
            now[0] += 2
        now[0] += 50  # between phases
        with clock.phase("backward"):
            now[0] += 4
    assert clock.read() == {"data": 0, "forward": 6, "backward": 12, "optimizer": 0}
    assert set(clock.read().values()) == {0}


def test_what_an_exception_cut_short_does_not_count(now: list[float]) -> None:
    clock = Clock(torch.device("cpu"))

    def spoilt() -> None:
        with clock.phase("forward"):
            now[0] += 9
            raise KeyError

    with pytest.raises(KeyError):
        spoilt()
    assert clock.read()["forward"] == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA events need a GPU")
def test_a_gpus_work_is_charged_to_the_phase_that_asked_for_it() -> None:
    device = torch.device("cuda")
    clock, matrix = Clock(device), torch.randn(4096, 4096, device=device)
    matrix @ matrix
    torch.cuda.synchronize()
    begun = time.perf_counter()
    with clock.phase("forward"):
        for _ in range(100):
            matrix @ matrix
    asked = time.perf_counter() - begun
    with clock.phase("optimizer"):
        torch.cuda.synchronize()
    spent = clock.read()
    assert spent["forward"] > 2 * asked
    assert spent["optimizer"] < spent["forward"]
