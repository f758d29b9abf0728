"""Explains why attempts of a run failed: the evidence, the decisions of the controller, and the outcome."""

import time
from collections.abc import Iterable

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.decision import AttemptDecision, AttemptStart
from trainyard.models.health_check import HealthCheckResult
from trainyard.models.layout import REPLACED_NODES, RunLayout
from trainyard.models.metrics import MetricLine
from trainyard.models.replaced_nodes import ReplacedNodes
from trainyard.models.run import Outcome
from trainyard.models.streams import Cursor, new_metrics
from trainyard.operations.cluster import Cluster
from trainyard.operations.runs import read_run_record
from trainyard.quantity import quantity
from trainyard.times import format_time


class RunExplanation(StrictModel):
    """`trainyard why --json`."""

    run: str = Field(description="Run id.")
    starts: tuple[AttemptStart, ...] = Field((), description="Starts of the attempts, oldest first.")
    first_steps: dict[int, int] = Field(default_factory=dict, description="Attempt -> first step that it completed.")
    decisions: tuple[AttemptDecision, ...] = Field(description="Decisions on the failed attempts, oldest first.")
    health_checks: tuple[HealthCheckResult, ...] = Field(description="Results of all health checks, oldest first.")
    outcome: Outcome | None = Field(description="Outcome of the run; null while it is active.")
    replaced_nodes: ReplacedNodes = Field(ReplacedNodes(), description="Replaced nodes of all runs of the cluster.")


def explain_run(cluster: Cluster, run: str | None) -> RunExplanation:
    """Return the explanation of a run, the newest when `run` is None. Raises InputError when it does not exist."""
    record = read_run_record(cluster, run)
    layout, data = RunLayout(record.run), cluster.data
    starts = (AttemptStart.model_validate_json(data.read(key)) for key in data.keys(layout.attempt_starts))
    decisions = (AttemptDecision.model_validate_json(data.read(key)) for key in data.keys(layout.decisions))
    results = (HealthCheckResult.model_validate_json(data.read(key)) for key in data.keys(layout.health_checks))
    replaced = data.find(REPLACED_NODES)
    return RunExplanation(
        run=record.run,
        starts=tuple(starts),
        first_steps=_find_first_steps(new_metrics(Cursor(data, layout.metrics))),
        decisions=tuple(decisions),
        health_checks=tuple(results),
        outcome=cluster.outcome(record.run),
        replaced_nodes=ReplacedNodes() if replaced is None else ReplacedNodes.model_validate_json(replaced),
    )


def _find_first_steps(lines: Iterable[MetricLine]) -> dict[int, int]:
    """Return attempt -> first step, from all metric lines of a run."""
    first: dict[int, int] = {}
    for metric in lines:
        first[metric.attempt] = min(metric.step, first.get(metric.attempt, metric.step))
    return first


def format_explanation(explanation: RunExplanation) -> list[str]:
    """Return an explanation as lines for people, in the order of the events."""
    entries: list[tuple[float, list[str]]] = []
    for previous, start in zip((None, *explanation.starts), explanation.starts, strict=False):
        text = start.describe(previous, explanation.first_steps.get(start.attempt))
        entries.append((start.time, [_head(start.time, text)]))
    for decision in explanation.decisions:
        evidence = [f"  {each.kind}: {each.text}" for each in decision.evidence] or ["  no evidence"]
        end = [f"  decision: {decision.summary()}"]
        entries.append((decision.time, [_head(decision.time, f"attempt {decision.attempt} failed"), *evidence, *end]))
    for result in explanation.health_checks:
        text = f"health check {result.number} {result.decision}: {result.reason}"
        entries.append((result.ended_at, [_head(result.ended_at, text)]))
    if outcome := explanation.outcome:
        entries.append((outcome.ended_at, [_head(outcome.ended_at, outcome.describe())]))
    lines = [line for _, entry in sorted(entries, key=lambda entry: entry[0]) for line in entry]
    none = "" if explanation.decisions else ": no attempt has failed"
    return [f"run {explanation.run}{none}", *lines, *_describe_replaced(explanation.replaced_nodes)]


def _describe_replaced(replaced: ReplacedNodes) -> list[str]:
    """Return a line for each suspect part of AWS's network."""
    suspect = replaced.suspect_network_nodes(time.time())
    return [
        f"{quantity(count, 'node')} of this cluster below the network node {name} were replaced in the last 7 days: "
        "the controller uses nodes below it last. To have its hosts examined, send these instance ids to AWS Support: "
        + ", ".join(node.instance for node in replaced.nodes if node.network_node == name)
        for name, count in suspect.items()
    ]


def _head(when: float, text: str) -> str:
    return f"{format_time(when)} {text}"
