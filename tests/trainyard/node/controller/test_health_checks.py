"""The controller and the health checks that it requests, with an emulated AWS account."""

import time
from typing import Any

import pytest

from rehearsal.aws.faults import Deny, MemberOmission
from rehearsal.aws.process import EmulatedAws
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import FAILURE, Run
from trainyard.models.health_check import HealthCheckResult, NodeFault
from trainyard.node.controller import health_checks
from trainyard.node.controller.health_checks import REPORT_GRACE_SECONDS

HUNG = NodeFault(kind="hung", text="process 1 did not complete: multiply matrices")


class CheckedRun(Run):
    """A run with health checks."""

    def __init__(self, **record: Any) -> None:
        super().__init__(create_cluster(REGION), **record)
        limits = self.record.limits.model_copy(update={"health_check_timeout_minutes": 3.0})
        self.record = self.record.model_copy(update={"limits": limits})
        self.start_controller()

    def write_results_of_all_nodes(self, number: int, **faults: tuple[NodeFault, ...]) -> None:
        """Write the events of all nodes; `first` or `second`: the faults of that node."""
        for name, node in zip(("first", "second"), self.nodes, strict=True):
            self.cluster.write_health_check_event(self.record.run, node, number, faults=faults.get(name, ()))

    def result(self) -> HealthCheckResult:
        return HealthCheckResult.model_validate_json(self.cluster.data.read(self.layout.latest_health_check))

    def replacement(self, replaced: str) -> str:
        """Return the replacement that Auto Scaling launched, and use it from now on."""
        (new_node,) = [node for node in self.cluster.members() if node not in self.nodes]
        self.nodes[self.nodes.index(replaced)] = new_node
        return new_node

    def terminate_node(self, node: str) -> None:
        self.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=node, ShouldDecrementDesiredCapacity=True
        )


@pytest.fixture
def run(account: EmulatedAws) -> CheckedRun:
    return CheckedRun()


def test_health_check_precedes_the_first_attempt(run: CheckedRun) -> None:
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "ready", 0)
    run.step_with_members()
    assert run.control() is None  # not all nodes are ready
    run.step("ready", 0)
    assert run.published.attempt == 0
    assert run.published.health_check is not None
    assert (run.published.health_check.number, set(run.published.health_check.nodes)) == (1, set(run.nodes))


def test_passed_health_check_starts_the_attempt(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.write_results_of_all_nodes(1)
    run.step_with_members()
    run.step_with_members()
    assert (run.published.attempt, run.published.health_check, set(run.published.nodes)) == (1, None, set(run.nodes))
    assert run.result().decision == "passed"
    assert {node.node for node in run.result().nodes} == set(run.nodes)


def test_health_check_waits_for_all_reports(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.cluster.write_health_check_event(run.record.run, run.nodes[0], 1)
    run.step_with_members()
    assert run.published.health_check is not None


def test_next_attempt_of_healthy_nodes_needs_no_health_check(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.write_results_of_all_nodes(1)
    run.step_with_members()
    run.step_with_members()
    run.step("workers_failed", 1, (FAILURE,))
    run.step_with_members()
    assert (run.published.attempt, run.published.health_check_count) == (2, 1)


def test_node_that_fails_twice_is_replaced_and_the_job_starts(run: CheckedRun) -> None:
    run.step("ready", 0)
    faulty = run.nodes[1]
    run.write_results_of_all_nodes(1, second=(HUNG,))
    run.step_with_members()
    assert faulty in run.cluster.members()
    assert run.result().decision == "repeat"
    run.step_with_members()
    assert run.published.health_check is not None
    assert (run.published.health_check.number, set(run.published.health_check.nodes)) == (2, set(run.nodes))
    run.write_results_of_all_nodes(2, second=(HUNG,))
    run.step_with_members()
    assert run.result().unhealthy_nodes == (faulty,)
    assert f"{faulty} failed twice: {HUNG.text}" in run.result().reason
    new_node = run.replacement(faulty)
    run.step_with_members()
    assert run.published.health_check is None  # the new node is not ready
    run.cluster.write_agent_event(run.record.run, new_node, "ready", 0)
    run.step_with_members()
    assert run.published.health_check is not None
    assert set(run.published.health_check.nodes) == set(run.nodes)
    run.write_results_of_all_nodes(3)
    run.step_with_members()
    run.step_with_members()
    assert (run.published.attempt, set(run.published.nodes)) == (1, set(run.nodes))


def test_node_that_fails_once_is_not_replaced(run: CheckedRun) -> None:
    run.step("ready", 0)
    before = set(run.cluster.members())
    run.write_results_of_all_nodes(1, second=(HUNG,))
    run.step_with_members()
    run.step_with_members()
    run.write_results_of_all_nodes(2)
    run.step_with_members()
    run.step_with_members()
    assert run.published.attempt == 1
    assert set(run.cluster.members()) == before


def test_unhealthy_node_is_not_used_before_its_replacement(run: CheckedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group replaces the node after some time."""
    run.step("ready", 0)
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", lambda node: None)
    for number in (1, 2):
        run.write_results_of_all_nodes(number, second=(HUNG,))
        run.step_with_members()
        run.step_with_members()
    assert (run.published.health_check, run.published.unhealthy_nodes) == (None, (run.nodes[1],))


def test_denied_unhealthy_mark_is_repeated(run: CheckedRun, account: EmulatedAws) -> None:
    run.step("ready", 0)
    faulty = run.nodes[1]
    run.write_results_of_all_nodes(1, second=(HUNG,))
    run.step_with_members()
    run.step_with_members()
    run.write_results_of_all_nodes(2, second=(HUNG,))
    account.inject(Deny(operation="autoscaling:SetInstanceHealth"))
    try:
        run.step_with_members()
    finally:
        account.clear_faults()
    assert run.published.unhealthy_nodes == (faulty,)
    assert faulty in run.cluster.members()
    run.start_controller()
    run.step_with_members()
    run.replacement(faulty)


def test_restarted_controller_continues_the_health_check(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.write_results_of_all_nodes(1, second=(HUNG,))
    run.step_with_members()
    run.step_with_members()
    run.start_controller()
    run.write_results_of_all_nodes(2, second=(HUNG,))
    run.step_with_members()
    assert run.result().unhealthy_nodes == (run.nodes[1],)


def test_same_fault_of_all_nodes_twice_ends_the_run(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.write_results_of_all_nodes(1, first=(HUNG,), second=(HUNG,))
    run.step_with_members()
    run.step_with_members()
    run.write_results_of_all_nodes(2, first=(HUNG,), second=(HUNG,))
    outcome = run.step_with_members()
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.reason.startswith("health check of the nodes: all 2 nodes failed twice the same way")
    assert set(run.cluster.members()) == set(run.nodes)


def test_node_without_report_is_faulty_at_the_deadline(run: CheckedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.step("ready", 0)
    run.cluster.write_health_check_event(run.record.run, run.nodes[0], 1, missing_peers=(run.nodes[1],))
    run.step_with_members()
    assert run.published.health_check is not None
    monkeypatch.setattr(health_checks, "REPORT_GRACE_SECONDS", -3 * 60.0)
    run.step_with_members()
    assert {node: [fault.kind for fault in faults] for node, faults in run.result().faulty_nodes.items()} == {
        run.nodes[1]: ["no_report"]
    }


def test_fault_ends_the_health_check_without_faults_for_other_nodes(
    run: CheckedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_checks, "FAULT_GRACE_SECONDS", 0.0)
    run.step("ready", 0)
    run.cluster.write_health_check_event(run.record.run, run.nodes[0], 1, faults=(HUNG,))
    run.step_with_members()
    assert run.result().faulty_nodes.keys() == {run.nodes[0]}
    assert run.result().seconds < REPORT_GRACE_SECONDS


def test_lost_node_cancels_the_health_check(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.terminate_node(run.nodes[1])
    run.step_until_loss()
    assert run.published.health_check is None
    assert run.cluster.data.find(run.layout.latest_health_check) is None


def start_job(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.write_results_of_all_nodes(1)
    run.step_with_members()
    run.step_with_members()
    run.step("workers_up", 1)


def test_new_nodes_are_checked_while_the_job_runs(run: CheckedRun) -> None:
    start_job(run)
    (new_node,) = run.cluster.launch_instances(1)
    run.controller.state.run = run.record.model_copy(update={"nodes": 3})
    run.cluster.write_agent_event(run.record.run, new_node, "ready", 0)
    run.step_with_members()
    assert run.published.attempt == 1
    assert run.published.health_check is not None
    assert run.published.health_check.nodes == (new_node,)
    run.cluster.write_health_check_event(run.record.run, new_node, 2)
    run.step_with_members()
    assert (run.published.attempt, set(run.published.nodes), run.published.save_checkpoint) == (
        2,
        {*run.nodes, new_node},
        True,
    )


def test_new_nodes_that_all_fail_are_replaced_and_do_not_end_the_run(run: CheckedRun) -> None:
    start_job(run)
    new_nodes = run.cluster.launch_instances(2)
    run.controller.state.run = run.record.model_copy(update={"nodes": 4})
    for node in new_nodes:
        run.cluster.write_agent_event(run.record.run, node, "ready", 0)
    run.step_with_members()
    for number in (2, 3):
        for node in new_nodes:
            run.cluster.write_health_check_event(run.record.run, node, number, faults=(HUNG,))
        assert run.step_with_members() is None
    assert run.result().decision == "failed"
    assert set(run.published.unhealthy_nodes) == set(new_nodes)
    assert (run.published.attempt, run.published.waiting_since) == (1, None)


def test_new_node_with_other_versions_does_not_join_the_job(run: CheckedRun) -> None:
    start_job(run)
    (new_node,) = run.cluster.launch_instances(1)
    run.controller.state.run = run.record.model_copy(update={"nodes": 3})
    run.cluster.write_agent_event(run.record.run, new_node, "ready", 0)
    run.step_with_members()
    run.cluster.write_health_check_event(run.record.run, new_node, 2, measurements={"torch": "2.14.0"})
    run.step_with_members()
    assert run.result().faulty_nodes[new_node][0].text == "torch 2.14.0, but 2 of 3 nodes have 2.15.0"
    assert run.published.attempt == 1


def test_cancelled_scale_out_cancels_the_health_check(run: CheckedRun) -> None:
    start_job(run)
    (new_node,) = run.cluster.launch_instances(1)
    run.controller.state.run = run.record.model_copy(update={"nodes": 3})
    run.cluster.write_agent_event(run.record.run, new_node, "ready", 0)
    run.step_with_members()
    run.controller.state.run = run.record
    run.step_with_members()
    assert (run.published.attempt, run.published.health_check) == (1, None)


def test_replacement_is_checked_with_all_nodes(run: CheckedRun) -> None:
    start_job(run)
    run.terminate_node(run.nodes[0])
    run.step_until_loss()
    (new_node,) = run.cluster.launch_instances(1)
    run.nodes[0] = new_node
    run.cluster.write_agent_event(run.record.run, new_node, "ready", 0)
    run.step_with_members()
    assert run.published.attempt == 1
    assert run.published.health_check is not None
    assert set(run.published.health_check.nodes) == set(run.nodes)


def test_startup_timeout_reports_the_health_check(run: CheckedRun) -> None:
    run.step("ready", 0)
    run.write_results_of_all_nodes(1, second=(HUNG,))
    run.step_with_members()
    run.controller.state.run = run.record.model_copy(update={"created": time.time() - 3000})
    outcome = run.step_with_members()
    assert outcome is not None
    assert outcome.reason.startswith(
        "the job did not start within 5 minutes (launch.startup_timeout_minutes); health check"
    )
    assert HUNG.text in outcome.reason


def test_member_missing_from_one_response_does_not_cancel_the_health_check(
    run: CheckedRun, account: EmulatedAws
) -> None:
    run.step("ready", 0)
    account.inject(MemberOmission(every=2))
    try:
        for _ in range(4):
            run.step_with_members()
    finally:
        account.clear_faults()
    assert run.published.health_check is not None
    assert (run.published.health_check.number, run.published.health_check_count) == (1, 1)
