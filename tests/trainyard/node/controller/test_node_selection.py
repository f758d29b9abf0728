"""The nodes of an attempt: added, spare and surplus ones, and fewer than before."""

import pytest

from rehearsal.aws.faults import Deny, MemberOmission
from rehearsal.aws.process import EmulatedAws
from tests.trainyard.node.controller.runs import FAILURE, Run, RunWithSpare
from trainyard.models.decision import AttemptStart
from trainyard.models.node_health import HealthFinding, NodeHealth
from trainyard.node.controller.attempts import CHECK_PAUSE_SECONDS, MAXIMUM_FAILED_CHECKS, SMALLER_SIZE_SECONDS
from trainyard.node.controller.liveness import SILENCE_SECONDS
from trainyard.node.controller.node_selection import FINDING_SECONDS


def test_scale_out_saves_a_checkpoint_and_starts_an_attempt(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    old_nodes, new_nodes = list(run.nodes), run.cluster.launch_instances(1)
    run.controller.state.run = run.record.model_copy(update={"nodes": 3})
    run.controller._members_at = None
    run.controller.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes)) == (1, set(old_nodes))  # the agent of the new node is not ready
    run.cluster.write_agent_event(run.record.run, new_nodes[0], "ready", 0)
    run.controller.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes), control.save_checkpoint) == (2, {*old_nodes, *new_nodes}, True)


def test_cancelled_scale_out_continues_with_the_old_nodes(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    old_nodes, new_nodes = list(run.nodes), run.cluster.launch_instances(1)
    run.controller.state.run = run.record.model_copy(update={"nodes": 3})
    run.controller._members_at = None
    run.cluster.write_agent_event(run.record.run, new_nodes[0], "ready", 0)
    run.controller.step()
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=new_nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.controller.state.run = run.record
    assert run.step_until_loss() is None
    assert run.step_with_members() is None
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes), control.save_checkpoint) == (3, set(old_nodes), False)


def expire_startup_timeout(run: Run) -> None:
    """Set a startup timeout of almost zero."""
    limits = run.record.limits.model_copy(update={"startup_timeout_minutes": 1e-6})
    run.controller.state.run = run.record.model_copy(update={"limits": limits})
    run.controller._members_at = None


def test_surplus_node_is_terminated_after_the_startup_timeout(run: Run) -> None:
    """A launch that adds nodes to the run may be killed."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    old_nodes, new_nodes = list(run.nodes), run.cluster.launch_instances(1)
    run.controller._members_at = None
    run.controller.step()
    assert sorted(run.cluster.members()) == sorted([*old_nodes, *new_nodes])  # it may become ready
    expire_startup_timeout(run)
    assert run.controller.step() is None
    assert sorted(run.cluster.members()) == sorted(old_nodes)
    assert run.cluster.describe_group()["DesiredCapacity"] == 2


def test_surplus_node_missing_from_one_response_remains_surplus(run: Run, account: EmulatedAws) -> None:
    """Each omission must not start its timeout again."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    (new_node,) = run.cluster.launch_instances(1)
    run.step_with_members()
    since = run.controller.attempts.selection._surplus_since[new_node]
    account.inject(MemberOmission(every=2))
    try:
        for _ in range(8):  # each member is omitted once
            run.step_with_members()
    finally:
        account.clear_faults()
    assert run.controller.attempts.selection._surplus_since == {new_node: since}


def test_spare_passes_a_health_check_while_the_job_runs(run_with_spare: RunWithSpare) -> None:
    spare = (set(run_with_spare.nodes) - set(run_with_spare.published.nodes)).pop()
    assert run_with_spare.pass_health_check() == (spare,)
    assert (run_with_spare.published.attempt, run_with_spare.published.health_check) == (1, None)
    assert spare in run_with_spare.published.healthy_nodes
    run_with_spare.clock.advance(run_with_spare.record.limits.startup_timeout_minutes * 60 + 1)
    run_with_spare.controller.step()
    assert len(run_with_spare.cluster.members()) == 3  # it is no surplus node


def test_checked_spare_replaces_a_lost_node_at_once(run_with_spare: RunWithSpare) -> None:
    run_with_spare.pass_health_check()
    lost, kept = run_with_spare.published.nodes
    run_with_spare.clock.advance(SILENCE_SECONDS + 1)
    run_with_spare.send_heartbeats(*(set(run_with_spare.nodes) - {lost}))
    run_with_spare.connections.connected.clear()  # the next event is read from S3
    run_with_spare.cluster.write_agent_event(run_with_spare.record.run, kept, "workers_failed", 1, (FAILURE,))
    run_with_spare.controller.step()
    published = run_with_spare.published
    assert (published.attempt, published.health_check) == (2, None)
    assert set(published.nodes) == set(run_with_spare.nodes) - {lost}


def test_failed_rank_does_not_use_the_spare(run_with_spare: RunWithSpare) -> None:
    run_with_spare.pass_health_check()
    before = run_with_spare.published.nodes
    for node in before:
        run_with_spare.cluster.write_agent_event(run_with_spare.record.run, node, "workers_failed", 1, (FAILURE,))
    run_with_spare.controller.step()
    assert set(run_with_spare.published.nodes) == set(before)


def test_job_continues_on_fewer_nodes_until_all_are_ready(run_with_spare: RunWithSpare) -> None:
    run = run_with_spare
    run.pass_health_check()
    remaining = run.lose_all_but_one()
    assert run.published.attempt == 1
    run.clock.advance(SMALLER_SIZE_SECONDS + 1)
    run.send_heartbeats(remaining)
    run.controller.step()
    assert (run.published.attempt, run.published.nodes) == (2, (remaining,))
    start = AttemptStart.model_validate_json(run.cluster.data.read(run.layout.attempt_start(2)))
    assert (start.nodes, start.run_nodes) == ((remaining,), 2)
    run.cluster.write_agent_event(run.record.run, remaining, "workers_up", 2)
    (replacement,) = run.cluster.launch_instances(1)
    run.cluster.write_agent_event(run.record.run, replacement, "ready", 0)
    run.step_with_members()
    assert run.pass_health_check() == (replacement,)
    assert (run.published.attempt, set(run.published.nodes)) == (3, {remaining, replacement})
    assert run.published.save_checkpoint


def test_job_on_fewer_nodes_continues_at_once_after_a_failed_rank(run_with_spare: RunWithSpare) -> None:
    run = run_with_spare
    run.pass_health_check()
    remaining = run.lose_all_but_one()
    run.clock.advance(SMALLER_SIZE_SECONDS + 1)
    run.send_heartbeats(remaining)
    run.controller.step()
    run.connections.connected.clear()  # the next event is read from S3
    failure = FAILURE.model_copy(update={"rank": 0, "local_rank": 0})
    run.cluster.write_agent_event(run.record.run, remaining, "workers_failed", 2, (failure,))
    run.controller.step()
    run.controller.step()
    assert (run.published.attempt, run.published.nodes) == (3, (remaining,))


def test_broken_spare_is_not_used_and_replaced(run_with_spare: RunWithSpare, monkeypatch: pytest.MonkeyPatch) -> None:
    run, marked = run_with_spare, list[str]()
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", marked.append)
    run.pass_health_check()
    (spare,) = set(run.nodes) - set(run.published.nodes)
    finding = HealthFinding(rule="gpu-lost", action="replace", device="GPU 1", text="Xid 79", time=1.0)
    run.connections.add_heartbeat(spare, run.record.run, run.clock.monotonic(), health=NodeHealth(findings=(finding,)))
    run.controller.step()
    assert spare not in run.controller.attempts.selection.find_usable(run.clock.time())
    assert marked == []
    run.clock.advance(FINDING_SECONDS)
    run.send_heartbeats(*run.published.nodes)
    run.controller.step()
    assert marked == [spare]


def fail_spares(run: RunWithSpare) -> None:
    """Let spare nodes fail their health check until the next one waits. Each is replaced by another spare node."""
    for _ in range(MAXIMUM_FAILED_CHECKS):
        (spare,) = run.fail_health_check()
        run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=spare, ShouldDecrementDesiredCapacity=True
        )
        (other,) = run.cluster.launch_instances(1)
        run.nodes = [*(node for node in run.nodes if node != spare), other]
        run.cluster.write_agent_event(run.record.run, other, "ready", 0)
        run.step_until_loss()


def test_next_spare_is_checked_after_a_pause_if_several_fail_in_a_row(run_with_spare: RunWithSpare) -> None:
    fail_spares(run_with_spare)
    assert run_with_spare.published.health_check is None
    run_with_spare.clock.advance(CHECK_PAUSE_SECONDS)
    run_with_spare.send_heartbeats(*run_with_spare.nodes)
    run_with_spare.controller.step()
    assert run_with_spare.published.health_check is not None


def test_spares_that_failed_do_not_end_the_run_when_nodes_are_checked_later(run_with_spare: RunWithSpare) -> None:
    run = run_with_spare
    fail_spares(run)
    lost, remaining = run.published.nodes
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    run.step_until_loss()
    assert len(run.fail_health_check(healthy=remaining)) == 2


def test_failed_scale_out_continues_with_the_old_nodes(run: Run) -> None:
    """A failed attempt of two nodes does not wait for a third node that a killed launch had requested."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.controller.state.run = run.controller.state.run.model_copy(update={"nodes": 3})
    assert run.step("workers_failed", 1, (FAILURE,)) is None
    run.clock.advance(46 * 60)
    run.send_heartbeats(*run.nodes)
    assert run.controller.step() is None
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes)) == (2, set(run.nodes))


def test_failed_termination_of_a_surplus_node_does_not_stop_the_run(run: Run, account: EmulatedAws) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.launch_instances(1)
    expire_startup_timeout(run)
    run.controller.step()
    account.inject(Deny(operation="autoscaling:TerminateInstanceInAutoScalingGroup"))
    try:
        assert run.controller.step() is None
        run.write_results()
        run.write_checkpoint(3)
        outcome = run.step("workers_done", 1)
    finally:
        account.clear_faults()
    assert outcome is not None
    assert outcome.state == "succeeded"


def test_node_that_waits_for_the_full_size_is_not_surplus(run: Run) -> None:
    """A job that continues on fewer nodes uses all nodes again when they are ready."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.controller.state.run = run.record.model_copy(update={"nodes": 3})
    run.controller.state.update_control(nodes=(run.nodes[0],))
    seconds = run.record.limits.startup_timeout_minutes * 60 + 1
    for _ in range(2):
        run.controller.attempts.selection.remove_surplus(run.clock.time())
        run.clock.advance(seconds)
    assert set(run.cluster.members()) == set(run.nodes)
