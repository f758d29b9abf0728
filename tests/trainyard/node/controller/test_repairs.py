"""Repairs of nodes, and how their groups replace them."""

import pytest

from rehearsal.aws.faults import Capacity, Deny
from rehearsal.aws.process import EmulatedAws
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import FAILURE, Run, RunWithSpare, StartingRun, put_termination_hook
from trainyard.models.node_health import HealthFinding, NodeHealth
from trainyard.node.controller.stragglers import SLOW_STEPS
from trainyard.node.controller.worker_groups import LAUNCH_FIRST_SECONDS


def test_node_with_a_hardware_finding_is_repaired_then_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[str] = []
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", replaced.append)
    finding = HealthFinding(rule="row-remap-pending", action="reset", device="GPU 1", text="pending", time=1.0)

    def fail(attempt: int) -> None:
        run.clock.advance(1.0)
        run.connections.add_heartbeat(
            run.nodes[0], run.record.run, run.clock.monotonic(), health=NodeHealth(findings=(finding,))
        )
        run.connections.connected.clear()
        run.step("workers_failed", attempt, (FAILURE,))

    run.step("ready", 0)
    fail(1)
    assert (run.published.repairs[run.nodes[0]].action, run.published.attempt) == ("reset", 1)
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "repaired", 1)
    run.controller.step()
    assert (run.published.repairs, run.published.attempt) == ({}, 2)
    fail(2)
    assert (run.published.repairs, replaced) == ({}, [run.nodes[0]])
    assert [decision.attempts_without_progress for decision in run.published.decisions] == [0, 0]


def test_slow_rank_leads_to_a_health_check_of_all_nodes_once(run_with_spare: RunWithSpare) -> None:
    run = run_with_spare
    run.pass_health_check()  # of the spare node
    nodes = run.published.nodes

    def report_steps(first: int, attempt: int) -> None:
        for step in range(first, first + SLOW_STEPS + 10, 5):
            run.clock.advance(1.0)
            for number, node in enumerate(nodes):
                run.connections.add_ranks(node, run.record.run, run.clock.monotonic(), step, attempt, number)
            run.controller.step()

    report_steps(1, 1)
    published = run.published
    assert published.health_check is not None
    assert set(published.health_check.nodes) == set(nodes)
    assert (published.save_checkpoint, published.checked_slow_nodes) == (True, (nodes[1],))
    (decision,) = published.decisions
    assert [evidence.kind for evidence in decision.evidence] == ["slow"]
    run.connections.connected.clear()
    run.pass_health_check()
    assert (run.published.attempt, run.published.nodes) == (2, nodes)
    report_steps(1, 2)
    assert (run.published.attempt, run.published.health_check) == (2, None)


def test_actions_of_a_decision_are_stored_with_it_and_repeated(run: Run, account: EmulatedAws) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    account.inject(Deny(operation="autoscaling:SetInstanceHealth"))
    try:
        finding = HealthFinding(rule="gpu-lost", action="replace", device="GPU 1", text="lost", time=1.0)
        health = NodeHealth(findings=(finding,))
        run.connections.add_heartbeat(run.nodes[1], run.record.run, run.clock.monotonic(), health=health)
        run.connections.connected.clear()
        run.step("workers_failed", 1, (FAILURE,))
        assert run.published.unhealthy_nodes == (run.nodes[1],)
        assert run.nodes[1] in run.cluster.members()
    finally:
        account.clear_faults()
    run.start_controller()
    run.step_with_members()
    states = {each["InstanceId"]: each["HealthStatus"] for each in run.cluster.describe_group()["Instances"]}
    assert states.get(run.nodes[1]) != "Healthy"


def test_replaced_node_does_not_wait_at_the_lifecycle_hook(account: EmulatedAws) -> None:
    run = StartingRun(create_cluster(REGION))
    put_termination_hook(run.cluster)
    run.allow_replacements(1)
    run.fail_startup(run.nodes[0])
    run.controller.step()
    run.step_with_members()
    members = {each["InstanceId"]: each["LifecycleState"] for each in run.cluster.describe_group()["Instances"]}
    assert members.get(run.nodes[0]) != "Terminating:Wait"


def test_unhealthy_node_is_terminated_if_its_replacement_does_not_start(account: EmulatedAws) -> None:
    run = StartingRun(create_cluster(REGION))
    run.cluster.autoscaling.update_auto_scaling_group(
        AutoScalingGroupName=run.cluster.group,
        InstanceMaintenancePolicy={"MinHealthyPercentage": 100, "MaxHealthyPercentage": 200},
    )
    run.allow_replacements(1)
    run.fail_startup(run.nodes[0])
    limit = Capacity(limit=0)
    account.inject(limit)
    run.controller.step()
    run.step_until_loss()
    assert run.nodes[0] in run.cluster.members()
    run.clock.advance(LAUNCH_FIRST_SECONDS + 1)
    run.step_until_loss()
    assert run.nodes[0] not in run.cluster.members()
    account.remove_faults([limit])


def test_node_outside_its_group_is_not_marked_unhealthy(run: Run) -> None:
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.controller.groups.mark_unhealthy(run.nodes[0])
