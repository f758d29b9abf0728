"""The idle timeout of a run."""

import time

import pytest

from tests.clusters import event_fields
from tests.trainyard.node.controller.runs import Run, end_run
from trainyard.models.events import ActivityEvent
from trainyard.node.controller.idle import IdleDetector


def write_idle_event(run: Run, node: str, idle_since: float | None, attempt: int = 1) -> None:
    """Write the event of a node that is idle since then."""
    fields = {"run": run.record.run, "attempt": attempt, "idle_since": idle_since, "resource": "cpu", "percent": 0.2}
    run.cluster.write_event(
        run.record.run, node, ActivityEvent.model_validate({**event_fields(node, "worker"), **fields})
    )


@pytest.fixture
def run_with_idle_timeout(run: Run) -> Run:
    """A started run with an idle timeout of ten minutes."""
    limits = run.record.limits.model_copy(update={"idle_timeout_minutes": 10.0})
    run.controller.state.run = run.record = run.record.model_copy(update={"limits": limits})
    run.step("ready", 0)
    run.step("workers_up", 1)
    return run


def test_run_is_stopped_if_all_nodes_are_idle(run_with_idle_timeout: Run) -> None:
    for node in run_with_idle_timeout.nodes:
        write_idle_event(run_with_idle_timeout, node, time.time() - 601)
    outcome = run_with_idle_timeout.controller.step()
    assert outcome is not None
    assert outcome.state == "stopped"
    assert outcome.reason.startswith("all nodes were idle for 10 minutes: CPU utilization was below 5 %")
    end_run(run_with_idle_timeout.controller, outcome)
    control = run_with_idle_timeout.control()
    assert control is not None
    assert (control.stop, control.save_checkpoint) == (True, True)


@pytest.mark.parametrize("idle_since", [None, 590.0, "no event"])
def test_run_continues_if_one_node_is_not_known_to_be_idle(
    run_with_idle_timeout: Run, idle_since: float | str | None
) -> None:
    write_idle_event(run_with_idle_timeout, run_with_idle_timeout.nodes[0], time.time() - 601)
    if not isinstance(idle_since, str):
        write_idle_event(run_with_idle_timeout, run_with_idle_timeout.nodes[1], idle_since and time.time() - idle_since)
    assert run_with_idle_timeout.controller.step() is None


def test_idle_run_without_a_limit_continues(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    for node in run.nodes:
        write_idle_event(run, node, time.time() - 10_000)
    assert run.controller.step() is None


def test_newer_event_counts_although_its_time_is_earlier() -> None:
    detector, now = IdleDetector(), time.time()
    fields = {"run": "r", "attempt": 1, "resource": "cpu", "percent": 0.2}
    for sequence, at, idle_since in ((1, now, now - 700), (2, now - 5, None)):
        values = {**event_fields("i-1", "worker"), **fields, "sequence": sequence, "time": at, "idle_since": idle_since}
        detector.update(ActivityEvent.model_validate(values))
    assert detector.find_idle_reason(1, ["i-1"], 10.0, now) is None
