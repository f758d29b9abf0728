"""Goodput of simulated runs: the controller loses little time, no healthy node and no run."""

from pathlib import Path

import pytest

from benchmarks.goodput import Source, main
from benchmarks.simulation import faults as kinds
from benchmarks.simulation.account import Flaws
from benchmarks.simulation.faults import DAY, HOUR, Fault, FaultKind, poisson_faults, read_trace
from benchmarks.simulation.simulation import Result, Scenario, Simulation, hosts_of

SAMPLE = Path(__file__).parent / "data/infinitehbd-sample.json"
NODES = 24


def simulate(scenario: Scenario) -> Result:
    """Simulate a run that must not end, leak or lose a healthy node."""
    result = Simulation(scenario).run()
    assert result.outcome is None
    assert (result.leaked, result.false_replacements) == ((), ())
    # The time of the run is the sum of its uses.
    assert result.ledger.total == pytest.approx(scenario.seconds)
    return result


@pytest.mark.parametrize(("spares", "goal"), [(0, 0.90), (1, 0.94)])
def test_sample_of_a_trace(spares: int, goal: float) -> None:
    faults = read_trace(SAMPLE, 1)
    result = simulate(
        Scenario(name="sample", nodes=NODES, seconds=4 * DAY, faults=faults, hosts=hosts_of(faults), spares=spares)
    )
    assert sum(result.causes.values()) > 15
    assert result.goodput > goal


def test_rate_of_llama() -> None:
    # As many faults of 24 nodes as of 2,048: checkpoints are rarer than this rate requires.
    seconds = 2 * DAY
    faults = list(poisson_faults(3, seconds, kinds.LLAMA_NODES))
    result = simulate(Scenario(name="llama", nodes=NODES, seconds=seconds, faults=faults, spares=1, seed=3))
    assert result.goodput > 0.89


def test_healthy_run_is_not_touched() -> None:
    """200 hours with heartbeats up to 45 s late, incomplete responses, failed calls and flaky status checks."""
    flaws = Flaws(omission=0.1, error=0.02, impaired=0.1, seed=5)
    result = simulate(
        Scenario(
            name="healthy",
            nodes=4,
            seconds=200 * HOUR,
            flaws=flaws,
            late_heartbeats=0.3,
            poll_seconds=11.0,
        )
    )
    assert (result.attempts, result.replaced) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "replaced"),
    [
        (kinds.GPU_LOST, 1),
        (kinds.GPU_MEMORY, 0),
        (kinds.GPU_MEMORY_WORN, 1),
        (kinds.EFA_DOWN, 1),
        (kinds.GPU_CRASH, 1),
        (kinds.HIDDEN_CRASH, 1),
        (kinds.NODE_HANG, 1),
        (kinds.HIDDEN_HANG, 1),
        (kinds.NETWORK_FLAP, 0),
        (kinds.SOFTWARE, 0),
        (kinds.LOST, 1),
        (kinds.RETIRED, 0),
    ],
)
def test_fault_of_each_kind(kind: FaultKind, replaced: int) -> None:
    fault = Fault(kind, "test", HOUR, float("inf"), "host-1")
    result = simulate(Scenario(name="one", nodes=4, seconds=4 * HOUR, faults=[fault]))
    assert result.replaced == replaced
    assert result.goodput > 0.5


def test_missing_trace_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.json"
    main(source=[Source.TRACE], spares=[0], days=1.0, seed=1, trace=missing)
    assert f"{missing} does not exist: the trace is skipped" in capsys.readouterr().err


def test_replacements_of_a_long_run_do_not_end_it() -> None:
    """More nodes than the run has fail health checks, hours apart."""
    faults = [Fault(kinds.GPU_CRASH, "test", number * HOUR, float("inf")) for number in range(1, 6)]
    result = simulate(Scenario(name="long", nodes=2, seconds=6 * HOUR, faults=faults))
    assert result.replaced == 5
