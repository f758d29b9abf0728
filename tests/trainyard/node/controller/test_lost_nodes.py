"""Nodes that are lost during an attempt, and their replacement."""

import pytest

from rehearsal.aws.faults import MemberOmission
from rehearsal.aws.process import EmulatedAws
from tests.conftest import REGION
from tests.polling import eventually
from tests.trainyard.node.controller.runs import FAILURE, Run, put_termination_hook
from trainyard.aws.clients import client
from trainyard.models.decision import AttemptDecision
from trainyard.node.controller.attempts import (
    FAILURE_REPORT_TIMEOUT_SECONDS,
)
from trainyard.node.controller.liveness import SILENCE_SECONDS
from trainyard.node.controller.node_selection import WAITING_SILENCE_SECONDS
from trainyard.node.controller.outcomes import create_outcome
from trainyard.node.controller.run_controller import MEMBERS_POLL_SECONDS


def test_node_loss_starts_a_new_attempt_with_its_replacement(run: Run) -> None:
    run.step("ready", 0)
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.step_until_loss()
    (replacement,) = run.cluster.launch_instances(1)
    run.nodes[0] = replacement
    run.cluster.write_agent_event(run.record.run, replacement, "ready", 0)
    run.controller._members_at = None
    run.controller.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes)) == (2, set(run.nodes))


def test_lost_master_is_replaced_in_the_next_attempt(run: Run) -> None:
    for number, node in enumerate(run.nodes):
        run.cluster.write_agent_event(run.record.run, node, "ready", 0, address=f"127.77.8.{number}")
    run.controller.step()
    first = run.published
    assert first.master is not None
    lost = first.nodes[0]
    assert first.master.address == f"127.77.8.{run.nodes.index(lost)}"
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    run.step_until_loss()
    (replacement,) = run.cluster.launch_instances(1)
    run.cluster.write_agent_event(run.record.run, replacement, "ready", 0, address="127.77.8.9")
    run.step_with_members()
    second = run.published
    assert second.master is not None
    addresses = {replacement: "127.77.8.9", first.nodes[1]: f"127.77.8.{run.nodes.index(first.nodes[1])}"}
    assert (second.attempt, second.master.address) == (2, addresses[second.nodes[0]])
    assert second.master.port != first.master.port


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_member_missing_from_one_response_is_not_lost(run: Run, account: EmulatedAws, restart: bool) -> None:
    run.step("ready", 0)
    account.inject(MemberOmission(every=2))
    try:
        run.cluster.members()  # the next response is incomplete
        if restart:
            run.start_controller()
        for _ in range(4):
            assert run.step_with_members() is None
    finally:
        account.clear_faults()
    control = run.control()
    assert control is not None
    assert (control.attempt, control.waiting_since, control.decisions) == (1, None, ())


def test_missing_nodes_end_the_run(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    assert run.step_until_loss() is None
    run.clock.advance(46 * 60)
    outcome = run.controller.step()
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.reason.startswith("1 of 2 nodes are ready 45 minutes (launch.replacement_minutes) after")


def test_silent_member_is_replaced_while_others_wait(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.step("ready", 0)
    run.write_all_agent_events("workers_failed", 1, (FAILURE,))
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", lambda node: None)
    run.controller.state.run = run.record.model_copy(update={"nodes": 3})  # no attempt starts
    run.controller.step()
    run.clock.advance(WAITING_SILENCE_SECONDS + 1)
    run.controller.step()
    assert not run.published.unhealthy_nodes  # the silence of all nodes is a fault of the head
    run.send_heartbeats(run.nodes[0])
    run.controller.step()
    assert list(run.published.unhealthy_nodes) == [run.nodes[1]]


@pytest.mark.parametrize(("nodes", "spares"), [(2, 0), (2, 1), (3, 0)])
def test_silent_node_of_a_running_attempt_is_not_replaced_without_a_second_sign(
    run: Run, monkeypatch: pytest.MonkeyPatch, nodes: int, spares: int
) -> None:
    replaced: list[str] = []
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", replaced.append)
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.controller.state.run = run.record.model_copy(update={"nodes": nodes, "spares": spares})
    run.clock.advance(10 * WAITING_SILENCE_SECONDS)
    run.send_heartbeats(run.nodes[0])
    assert run.controller.step() is None
    assert (replaced, run.published.attempt, run.published.waiting_since) == ([], 1, None)


def test_silent_node_of_an_attempt_is_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[str] = []
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", replaced.append)
    run.step("ready", 0)
    run.step("workers_up", 1)
    peer_failure = FAILURE.model_copy(update={"rank": 0, "message": "RuntimeError: Connection reset by peer"})
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "workers_failed", 1, (peer_failure,))
    run.controller.step()
    run.clock.advance(FAILURE_REPORT_TIMEOUT_SECONDS + 1)
    run.send_heartbeats(run.nodes[0])
    run.controller.step()
    assert replaced == []  # its silence is too short
    run.clock.advance(SILENCE_SECONDS)
    run.send_heartbeats(run.nodes[0])
    run.controller.step()
    (decision,) = run.published.decisions
    assert (decision.cause, decision.actions, replaced) == ("node", {run.nodes[1]: "replace"}, [run.nodes[1]])
    stored = run.cluster.data.read(run.layout.decision(1))
    assert AttemptDecision.model_validate_json(stored) == decision


def test_drained_node_is_replaced_and_not_used_again(run: Run) -> None:
    """After a spot notice the group keeps the node for two minutes."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "drained", 1)
    for _ in range(2):
        assert run.controller.step() is None
    control = run.control()
    assert control is not None
    assert control.waiting_since is not None
    assert control.attempt == 1
    (replacement,) = run.cluster.launch_instances(1)
    run.cluster.write_agent_event(run.record.run, replacement, "ready", 0)
    run.controller._members_at = None
    run.controller.step()
    control = run.control()
    assert control is not None
    assert set(control.nodes) == {run.nodes[1], replacement}


def drain_first_node(run: Run) -> None:
    """Let the group terminate the first node while the job runs, so that it waits at its lifecycle hook."""
    put_termination_hook(run.cluster)
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.step_until_loss()


def follow(run: Run, steps: int = 2) -> None:
    """Let the controller read members and reports again."""
    for _ in range(steps):
        run.clock.advance(MEMBERS_POLL_SECONDS)
        run.controller.step()


def test_lifecycle_action_of_a_drained_node_is_completed_when_it_is_off(run: Run) -> None:
    drain_first_node(run)
    assert lifecycle_state(run, run.nodes[0]) == "Terminating:Wait"
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "drained", 1)
    client("ec2", REGION).stop_instances(InstanceIds=[run.nodes[0]])
    follow(run)
    assert lifecycle_state(run, run.nodes[0]) in {None, "Terminating:Proceed"}


def test_reported_drain_of_a_node_that_runs_does_not_end_it(run: Run) -> None:
    """Another node may have sent the report."""
    drain_first_node(run)
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "drained", 1)
    follow(run)
    assert lifecycle_state(run, run.nodes[0]) == "Terminating:Wait"


def test_ended_run_completes_the_actions_of_its_drained_nodes(run: Run) -> None:
    put_termination_hook(run.cluster)
    run.step("ready", 0)
    outcome = create_outcome(run.controller.state, "stopped", "test")
    assert not run.controller.end_run(outcome)
    for node in run.nodes:
        run.cluster.write_agent_event(run.record.run, node, "drained", 1)
    client("ec2", REGION).stop_instances(InstanceIds=run.nodes)

    def has_ended() -> bool:
        run.clock.advance(MEMBERS_POLL_SECONDS)
        return run.controller.end_run(outcome)

    eventually(has_ended, "the end of the run")
    assert run.cluster.members() == []


def lifecycle_state(run: Run, node: str) -> str | None:
    (group,) = run.cluster.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[run.cluster.group])[
        "AutoScalingGroups"
    ]
    states = {each["InstanceId"]: each["LifecycleState"] for each in group["Instances"]}
    return states.get(node)


def test_draining_node_is_not_lost_before_it_has_saved_a_checkpoint(run: Run) -> None:
    drain_first_node(run)
    assert (run.published.aborted_attempt, run.published.waiting_since) == (0, None)
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "drained", 1)
    run.controller.step()
    (decision,) = run.published.decisions
    assert (decision.cause, decision.actions) == ("node", {run.nodes[0]: "none"})
