"""How a run recovered from each fault. Without side effects."""

from collections.abc import Iterable, Sequence

from pydantic import Field

from rehearsal.chaos.faults import ended_attempts, fault_kind
from rehearsal.run_records import RunRecords
from trainyard.base import StrictModel
from trainyard.models.decision import AttemptDecision
from trainyard.models.events import AgentEvent
from trainyard.models.metrics import MetricLine
from trainyard.models.report import FaultInjection


class Recovery(StrictModel):
    """Recovery from one fault. Seconds count from the injection; none: the fault did not end the attempt."""

    fault: str = Field(description="The fault, in the syntax of --fault.")
    kind: str = Field(description="The fault without place and time.")
    time: float = Field(description="Unix time of the injection, seconds.")
    nodes: tuple[str, ...] = Field(description="Instances that it affected; empty for a fault of the account.")
    attempt: int | None = Field(description="Attempt that it ended; none: the job continued.")
    detected_seconds: float | None = Field(None, description="Seconds to the decision of the controller.")
    restarted_seconds: float | None = Field(None, description="Seconds to the start of all ranks of the next attempt.")
    next_step_seconds: float | None = Field(None, description="Seconds to the end of the first step afterwards.")
    regained_seconds: float | None = Field(None, description="Seconds until the last step before it was done again.")
    repeated_steps: int = Field(0, ge=0, description="Steps that were done before it and again after it.")
    unsaved_steps: int = Field(0, ge=0, description="Of these, steps that the newest checkpoint at the time contained.")


def find_recoveries(injections: Iterable[FaultInjection], records: RunRecords) -> list[Recovery]:
    """Return the recovery from each fault, in the order of the injections."""
    return [_recovery(each, decision, records) for each, decision in ended_attempts(injections, records.decisions)]


def _recovery(injection: FaultInjection, decision: AttemptDecision | None, records: RunRecords) -> Recovery:
    recovery = Recovery(
        fault=injection.fault,
        kind=fault_kind(injection.fault),
        time=injection.time,
        nodes=injection.nodes,
        attempt=decision.attempt if decision else None,
    )
    if decision is None:
        return recovery
    before = max((line.step for line in records.lines if line.attempt <= decision.attempt), default=0)
    later = [line for line in records.lines if line.attempt > decision.attempt]
    times: dict[str, float | None] = {
        "detected_seconds": decision.time,
        "restarted_seconds": restart_time(records, decision.attempt),
        "next_step_seconds": later[0].time if later else None,
        "regained_seconds": next((line.time for line in later if line.step >= before), None),
    }
    seconds = {name: round(time - injection.time, 2) for name, time in times.items() if time is not None}
    return recovery.model_copy(update={**seconds, **_lost_steps(injection, before, later)})


def _lost_steps(injection: FaultInjection, before: int, later: Sequence[MetricLine]) -> dict[str, int]:
    if not later:
        return {}
    resumed = later[0].step - 1
    saved = int(injection.checkpoint.rpartition("-")[2]) if injection.checkpoint else 0
    return {"repeated_steps": max(0, before - resumed), "unsaved_steps": max(0, saved - resumed)}


def restart_time(records: RunRecords, attempt: int) -> float | None:
    """Return when all ranks of the next attempt with a step had started; None without one."""
    next_attempt = next((line.attempt for line in records.lines if line.attempt > attempt), None)
    return max(
        (
            event.time
            for event in records.events
            if isinstance(event, AgentEvent) and event.state == "workers_up" and event.attempt == next_attempt
        ),
        default=None,
    )
