"""Benchmark of recovery: what it reads from the report of a rehearsal."""

import pytest

from benchmarks.recovery import FAULTS, find_recoveries
from tests.rehearsal.chaos.test_report import rehearsal
from trainyard.models.report import Recovery


def recovery(fault: str, seconds: float | None, repeated: int) -> Recovery:
    fields = {"fault": fault, "kind": "rank-kill", "time": 1.0, "nodes": (), "attempt": 1}
    return Recovery.model_validate({**fields, "next_step_seconds": seconds, "repeated_steps": repeated})


def test_recovery_has_the_seconds_and_the_repeated_steps_of_each_fault() -> None:
    killed, hang = FAULTS.values()
    report = rehearsal(recoveries=(recovery(killed, 3.5, 1), recovery(hang, 4.0, 0)))
    assert find_recoveries(report) == {"rank killed": (3.5, 1), "peers hang": (4.0, 0)}


def test_fault_without_a_next_step_is_an_error() -> None:
    killed, hang = FAULTS.values()
    with pytest.raises(RuntimeError, match="no step followed rank-kill,rank=3"):
        find_recoveries(rehearsal(recoveries=(recovery(killed, None, 0), recovery(hang, 4.0, 0))))
