"""The idle timeout of a run."""

import time

import pytest

from tests.clusters import event_fields
from tests.trainyard.node.controller.runs import Run, end_run
from trainyard.models.events import ActivityEvent


def write_idle_event(run: Run, node: str, idle_seconds: float | None, attempt: int = 1) -> None:
    """Write the event of a node that is idle for this time."""
    fields = {
        "run": run.record.run,
        "attempt": attempt,
        "idle_seconds": idle_seconds,
        "resource": "cpu",
        "percent": 0.2,
    }
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
        write_idle_event(run_with_idle_timeout, node, 601.0)
    outcome = run_with_idle_timeout.controller.step()
    assert outcome is not None
    assert outcome.state == "stopped"
    assert outcome.reason.startswith("all nodes were idle for 10 minutes: CPU utilization was below 5 %")
    end_run(run_with_idle_timeout.controller, outcome)
    control = run_with_idle_timeout.control()
    assert control is not None
    assert (control.stop, control.save_checkpoint) == (True, True)


@pytest.mark.parametrize("idle_seconds", [None, 590.0, "no event"])
def test_run_continues_if_one_node_is_not_known_to_be_idle(
    run_with_idle_timeout: Run, idle_seconds: float | str | None
) -> None:
    write_idle_event(run_with_idle_timeout, run_with_idle_timeout.nodes[0], 601.0)
    if not isinstance(idle_seconds, str):
        write_idle_event(run_with_idle_timeout, run_with_idle_timeout.nodes[1], idle_seconds)
    assert run_with_idle_timeout.controller.step() is None


def test_reports_from_before_a_restart_of_the_controller_do_not_count(run_with_idle_timeout: Run) -> None:
    for node in run_with_idle_timeout.nodes:
        write_idle_event(run_with_idle_timeout, node, 601.0)
    run_with_idle_timeout.start_controller()
    assert run_with_idle_timeout.controller.step() is None


def test_idle_run_without_a_limit_continues(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    for node in run.nodes:
        write_idle_event(run, node, 10_000.0)
    assert run.controller.step() is None


def test_clock_of_a_node_does_not_count(run_with_idle_timeout: Run) -> None:
    for node in run_with_idle_timeout.nodes:
        fields = event_fields(node, "worker") | {"time": time.time() - 3600}
        values = {"run": run_with_idle_timeout.record.run, "attempt": 1, "resource": "cpu", "percent": 0.2}
        event = ActivityEvent.model_validate({**fields, **values, "idle_seconds": 5.0})
        run_with_idle_timeout.cluster.write_event(run_with_idle_timeout.record.run, node, event)
    assert run_with_idle_timeout.controller.step() is None
