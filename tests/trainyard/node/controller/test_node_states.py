"""States of the agents of a run."""

from typing import Any

from trainyard.models.events import AgentEvent
from trainyard.models.layout import complete_checkpoints
from trainyard.models.node_health import HealthAction, HealthFinding, NodeHealth
from trainyard.node.controller.node_states import NodeStates


def event(instance: str, state: str, attempt: int = 1, **fields: Any) -> AgentEvent:
    values = {"time": 1.0, "instance": instance, "role": "worker", "boot": "0001", "run": "r", "address": "10.0.0.1"}
    return AgentEvent.model_validate({**values, "attempt": attempt, "state": state, **fields})


def test_select_nodes_needs_all_nodes() -> None:
    states = NodeStates()
    states.update(event("i-1", "ready", 0))
    assert states.select_nodes(["i-1", "i-2"], 2) is None
    states.update(event("i-2", "ready", 0))
    assert states.select_nodes(["i-1", "i-2"], 2) == ("i-1", "i-2")
    assert states.select_nodes(["i-1"], 2) is None


def test_node_outside_the_group_has_departed() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_up"))
    assert states.find_departed_nodes(["i-1"], ["i-1"]) == []
    assert states.find_departed_nodes(["i-1"], []) == ["i-1"]


def test_failed_and_unreported_nodes_are_those_of_the_attempt() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_failed", 1))
    states.update(event("i-2", "workers_up", 1))
    assert (states.failed_nodes(1, ["i-1", "i-2"]), states.unreported_nodes(1, ["i-1", "i-2"])) == (["i-1"], ["i-2"])
    assert (states.failed_nodes(2, ["i-1"]), states.unreported_nodes(2, ["i-1"])) == ([], ["i-1"])


def test_node_with_a_failed_rank_has_failed_but_not_reported() -> None:
    states = NodeStates()
    states.update(event("i-1", "rank_failed", 1))
    assert (states.failed_nodes(1, ["i-1"]), states.unreported_nodes(1, ["i-1"])) == (["i-1"], ["i-1"])


def test_state_must_be_that_of_all_nodes_in_the_attempt() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_done", 2))
    states.update(event("i-2", "workers_done", 1))
    assert not states.all_have_state("workers_done", 2, ["i-1", "i-2"])
    states.update(event("i-2", "workers_done", 2, time=3.0))
    assert states.all_have_state("workers_done", 2, ["i-1", "i-2"])


def test_step_of_the_clock_loses_no_state() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_up", 1, time=100.0, sequence=5))
    states.update(event("i-1", "workers_failed", 1, time=95.0, sequence=6))
    assert states.failed_nodes(1, ["i-1"]) == ["i-1"]


def test_event_that_arrives_late_does_not_replace_a_later_one() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_failed", 1, sequence=6))
    states.update(event("i-1", "workers_up", 1, sequence=5))
    assert states.failed_nodes(1, ["i-1"]) == ["i-1"]


def test_ready_agent_after_a_restart_keeps_its_state_in_the_attempt() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_done", 1, sequence=5))
    states.update(event("i-1", "ready", 0, sequence=6))
    assert states.all_have_state("workers_done", 1, ["i-1"])


def test_checkpoint_without_commit_mark_does_not_count() -> None:
    keys = ["c/step-1/.metadata", "c/step-1/__0_0.distcp", "c/step-2/__0_0.distcp"]
    assert complete_checkpoints(keys, "c/") == ["step-1"]


def health(*findings: tuple[str, HealthAction]) -> NodeHealth:
    values = [HealthFinding(rule=rule, action=action, device=None, text="x", time=1.0) for rule, action in findings]
    return NodeHealth(findings=tuple(values))


def test_findings_of_hardware_need_an_action_and_are_not_of_all_nodes() -> None:
    states = NodeStates()
    states.update(event("i-1", "ready", health=health(("gpu-lost", "replace"), ("efa-missing", "replace"))))
    states.update(event("i-2", "ready", health=health(("efa-missing", "replace"), ("disk-io", "warn"))))
    rules = {
        node: [each.rule for each in findings] for node, findings in states.hardware_findings(["i-1", "i-2"]).items()
    }
    assert rules == {"i-1": ["gpu-lost"]}
    assert list(states.hardware_findings(["i-2"])) == ["i-2"]
