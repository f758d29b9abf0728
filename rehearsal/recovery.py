"""Measures the recovery of a run from each injected fault. Without side effects."""

from collections.abc import Sequence
from itertools import pairwise

from rehearsal.fault_effects import ended_attempts, fault_kind, time_of_next
from rehearsal.run_records import RunRecords
from trainyard.models.decision import AttemptDecision
from trainyard.models.events import AgentEvent
from trainyard.models.metrics import MetricLine
from trainyard.models.report import FaultInjection, Recovery

# Field of a recovery -> heading of its column, in the order of time.
PHASES = {
    "detected_seconds": "detected",
    "restarted_seconds": "ranks up",
    "next_step_seconds": "next step",
    "caught_up_seconds": "caught up",
}


def find_recoveries(
    injections: Sequence[FaultInjection], records: RunRecords, *, only_expected: bool = False
) -> list[Recovery]:
    """Return the recovery from each fault, in the order of the injections. `only_expected`: as in `ended_attempts`."""
    return [
        _recovery(each, decision, time_of_next(each, injections), records)
        for each, decision in ended_attempts(injections, records.decisions, only_expected=only_expected)
    ]


def _recovery(
    injection: FaultInjection, decision: AttemptDecision | None, following: float, records: RunRecords
) -> Recovery:
    recovery = Recovery(
        fault=injection.fault,
        kind=fault_kind(injection.fault),
        time=injection.time,
        nodes=injection.nodes,
        attempt=decision.attempt if decision else None,
    )
    if decision is None:
        return recovery.model_copy(update={"longest_step_seconds": _longest_step(records, injection.time, following)})
    before = max((line.step for line in records.lines if line.attempt <= decision.attempt), default=0)
    later = [line for line in records.lines if line.attempt > decision.attempt]
    times: dict[str, float | None] = {
        "detected_seconds": decision.time,
        "restarted_seconds": restart_time(records, decision.attempt),
        "next_step_seconds": later[0].time if later else None,
        "caught_up_seconds": next((line.time for line in later if line.step >= before), None),
    }
    seconds = {name: round(time - injection.time, 2) for name, time in times.items() if time is not None}
    return recovery.model_copy(update={**seconds, **_lost_steps(injection, before, later)})


def _longest_step(records: RunRecords, start: float, end: float) -> float | None:
    """Return the longest time between two consecutive steps that ends between `start` and `end`, Unix times."""
    times = [line.time for line in records.final_lines]
    return max((round(after - before, 2) for before, after in pairwise(times) if start <= after <= end), default=None)


def _lost_steps(injection: FaultInjection, before: int, later: Sequence[MetricLine]) -> dict[str, int]:
    if not later:
        return {}
    resumed = later[0].step - 1
    saved = int(injection.checkpoint.rpartition("-")[2]) if injection.checkpoint else 0
    return {"repeated_steps": max(0, before - resumed), "lost_saved_steps": max(0, saved - resumed)}


def restart_time(records: RunRecords, attempt: int) -> float | None:
    """Return when all ranks of the next attempt that completed a step had started; None without such an attempt."""
    next_attempt = next((line.attempt for line in records.lines if line.attempt > attempt), None)
    return max(
        (
            event.time
            for event in records.events
            if isinstance(event, AgentEvent) and event.state == "workers_up" and event.attempt == next_attempt
        ),
        default=None,
    )
