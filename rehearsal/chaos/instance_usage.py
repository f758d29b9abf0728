"""What the billed seconds of the workers of a run were used for. Without side effects."""

from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field

from rehearsal.fault_effects import ended_attempts
from rehearsal.run_records import RunRecords, workers
from rehearsal.timeline import Span
from trainyard.base import StrictModel
from trainyard.models.decision import AttemptDecision
from trainyard.models.events import AgentEvent, HealthCheckResultEvent
from trainyard.models.metrics import MetricLine
from trainyard.models.report import FaultInjection

STARTUP, CHECK, START = "startup of a node", "health check", "start of the ranks"
LOAD, USEFUL, CHECKPOINT, REPEATED = "load", "useful steps", "checkpoints", "repeated steps"
DETECTION, REPLACEMENT, REPAIR, RESTART = "detection", "replacement of nodes", "repair of nodes", "restart of the ranks"
END, SPARE, REMOVAL = "end of the run", "spare", "termination of replaced nodes"


class InstanceUsage(StrictModel):
    """Billed instance-seconds of the workers, from launch to termination, and what they were used for."""

    billed_seconds: float = Field(description="Billed instance-seconds.")
    seconds: dict[str, float] = Field(description="Use -> instance-seconds.")
    goodput: float = Field(
        description="Share of the time from the first to the last step that useful steps and checkpoints take."
    )

    @property
    def unexplained_share(self) -> float:
        """Share of the billed seconds without a known use."""
        return 1 - sum(self.seconds.values()) / self.billed_seconds if self.billed_seconds else 0.0


def measure_usage(injections: Sequence[FaultInjection], records: RunRecords) -> InstanceUsage:
    """Return the use of the workers of a run that has ended, whose workers are terminated."""
    ended = ended_attempts(injections, records.decisions, only_expected=True)
    explained = {decision.attempt for _, decision in ended if decision}
    spans, uses, billed = list(_run_spans(records, explained)), dict[str, float](), 0.0
    for instance in workers(records.instances):
        assert instance.terminated_time is not None, f"{instance.id} is not terminated"
        life = Span(name=instance.id, start=instance.launch_time, end=instance.terminated_time)
        billed += life.end - life.start
        for span in _instance_spans(life, records, spans):
            uses[span.name] = uses.get(span.name, 0.0) + span.end - span.start
    lines = records.final_lines
    duration = lines[-1].time - lines[0].time + lines[0].step_seconds if lines else 0.0
    useful = sum(span.end - span.start for span in spans if span.name in (USEFUL, CHECKPOINT))
    rounded = {name: round(uses[name], 2) for name in sorted(uses, key=uses.__getitem__, reverse=True)}
    return InstanceUsage(
        billed_seconds=round(billed, 2), seconds=rounded, goodput=round(useful / duration, 4) if duration else 0.0
    )


def replaced_nodes(decision: AttemptDecision) -> set[str]:
    """Return the nodes that a decision replaces, and those that were not in their group any more."""
    departed = {each.node for each in decision.evidence if each.kind == "departed" and each.node is not None}
    return departed | {node for node, action in decision.actions.items() if action == "replace"}


def _instance_spans(life: Span, records: RunRecords, run: Iterable[Span]) -> Iterator[Span]:
    """Return what one instance did: its own startup and removal, and what the run did meanwhile."""
    events = [event for event in records.events if isinstance(event, AgentEvent) and event.instance == life.name]
    ready = min((event.time for event in events), default=life.end)
    used = [event.time for event in events if event.state == "workers_up"]
    replaced = [each.time for each in records.decisions if life.name in replaced_nodes(each)]
    removal = min([*replaced, life.end])
    yield Span(name=STARTUP, start=life.start, end=min(ready, life.end))
    for span in run:
        start, end = max(span.start, ready, life.start), min(span.end, life.end, removal)
        is_spare = span.name in (USEFUL, CHECKPOINT, REPEATED) and (not used or min(used) > end)
        if end > start:
            yield Span(name=SPARE if is_spare else span.name, start=start, end=end)
    if removal < life.end:
        yield Span(name=REMOVAL, start=max(removal, ready), end=life.end)


def _run_spans(records: RunRecords, explained: set[int]) -> Iterator[Span]:
    """Return what the run did, in order. What followed a failure without a known cause is in no span."""
    decisions = {decision.attempt: decision for decision in records.decisions}
    ups = _up_times(records)
    attempts = sorted({*decisions, *(line.attempt for line in records.lines)})
    is_known = True
    since, label = min((each.launch_time for each in workers(records.instances)), default=0.0), CHECK
    for attempt in attempts:
        lines = [line for line in records.lines if line.attempt == attempt]
        up, decision = ups.get(attempt), decisions.get(attempt)
        if up is not None:
            yield from _split(since, up, label, records) if is_known else ()
            since = max(since, up)
        if lines:
            start = lines[0].time - lines[0].step_seconds
            if is_known:
                yield Span(name=LOAD, start=since, end=start)
            yield from _step_spans(lines, records, start)
            since = lines[-1].time
        if decision is None:
            break
        is_known = attempt in explained
        if is_known and decision.time > since:
            yield Span(name=DETECTION, start=since, end=decision.time)
        since, label = max(since, decision.time), _label_after(decision)  # ranks may save a checkpoint after it
    yield Span(name=END, start=since, end=max((each.terminated_time or 0.0 for each in records.instances), default=0.0))


def _split(start: float, end: float, label: str, records: RunRecords) -> Iterator[Span]:
    """Return the spans before all ranks run: `label` until the last result of a health check, then START.

    Without such a result the whole span is `label`.
    """
    results = [event.time for event in records.events if isinstance(event, HealthCheckResultEvent)]
    checked = max((time for time in results if start < time < end), default=None)
    if checked is not None:
        yield Span(name=label, start=start, end=checked)
    yield Span(name=START if checked is not None else label, start=checked or start, end=end)


def _step_spans(lines: list[MetricLine], records: RunRecords, start: float) -> Iterator[Span]:
    final = {line.step: line.attempt for line in records.final_lines}
    for line in lines:
        saved = min(start + line.checkpoint_seconds, line.time)
        is_final = final[line.step] == line.attempt
        yield Span(name=CHECKPOINT if is_final else REPEATED, start=start, end=saved)
        yield Span(name=USEFUL if is_final else REPEATED, start=saved, end=line.time)
        start = line.time


def _label_after(decision: AttemptDecision) -> str:
    if replaced_nodes(decision):
        return REPLACEMENT
    if any(action != "none" for action in decision.actions.values()):
        return REPAIR
    return CHECK if decision.checks_nodes else RESTART


def _up_times(records: RunRecords) -> dict[int, float]:
    """Return attempt -> when all its ranks had started."""
    ups: dict[int, float] = {}
    for event in records.events:
        if isinstance(event, AgentEvent) and event.state == "workers_up":
            ups[event.attempt] = max(ups.get(event.attempt, 0.0), event.time)
    return ups
