"""Attempts of a run: start, failure, the next one, and their end."""

import pytest
from botocore.exceptions import EndpointConnectionError

from rehearsal.aws.process import EmulatedAws
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import FAILURE, Run, agent_event
from trainyard.node.controller.failure_analysis import OUTAGE_RETRY_SECONDS
from trainyard.node.controller.run_controller import MEMBERS_POLL_SECONDS


def test_attempt_starts_when_all_nodes_are_ready(run: Run) -> None:
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "ready", 0)
    assert run.controller.step() is None
    assert run.control() is None
    run.cluster.write_agent_event(run.record.run, run.nodes[1], "ready", 0)
    run.controller.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes), control.stop) == (1, set(run.nodes), False)


def test_completed_job_with_results_succeeds(run: Run) -> None:
    run.step("ready", 0)
    run.write_results()
    run.write_checkpoint(3)
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)


@pytest.mark.parametrize("missing", ["results", "checkpoint"])
def test_completed_job_without_results_or_checkpoint_fails(run: Run, missing: str) -> None:
    run.step("ready", 0)
    if missing == "results":
        run.write_checkpoint(3)
    else:
        run.write_results()
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert outcome.state == "failed"
    assert missing in outcome.reason


def test_custom_job_needs_no_results(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION, train=None, command=("train.py",)))
    run.step("ready", 0)
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert outcome.state == "succeeded"


def test_failed_attempt_is_followed_by_another(run: Run) -> None:
    run.step("ready", 0)
    assert run.step("workers_failed", 1, (FAILURE,)) is None
    assert run.controller.step() is None
    control = run.control()
    assert control is not None
    assert control.attempt == 2


def test_first_failure_aborts_the_attempt_on_all_nodes(run: Run) -> None:
    run.step("ready", 0)
    run.write_all_agent_events("workers_up", 1)
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "workers_failed", 1, (FAILURE,))
    run.controller.step()
    assert (run.published.attempt, run.published.aborted_attempt) == (1, 1)


def test_failed_rank_aborts_the_attempt_but_the_next_awaits_all_reports(run: Run) -> None:
    run.step("ready", 0)
    run.write_all_agent_events("workers_up", 1)
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "rank_failed", 1)
    run.controller.step()
    assert (run.published.attempt, run.published.aborted_attempt) == (1, 1)
    run.step("workers_failed", 1, (FAILURE,))
    run.controller.step()
    assert run.published.attempt == 2


def test_same_failure_twice_ends_the_run(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.controller.step()
    outcome = run.step("workers_failed", 2, (FAILURE,))
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.failure == FAILURE
    assert outcome.failed_node in run.nodes


def test_progress_between_failures_continues_the_run(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.controller.step()
    run.write_checkpoint(20)
    assert run.step("workers_failed", 2, (FAILURE,)) is None


def test_only_a_newer_checkpoint_is_progress(run: Run) -> None:
    run.write_checkpoint(20)
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.controller.step()
    assert run.published.newest_checkpoint == "step-00000020"
    run.write_checkpoint(10)
    outcome = run.step("workers_failed", 2, (FAILURE,))
    assert outcome is not None
    assert outcome.state == "failed"


def test_any_new_object_of_a_custom_job_is_progress(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION))
    job = run.record.job.model_copy(update={"train": None, "command": ("train.py",)})
    run.record = run.record.model_copy(update={"job": job})
    run.start_controller()
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.controller.step()
    run.cluster.data.write(f"{run.layout.checkpoints}model.pt", b"x")
    assert run.step("workers_failed", 2, (FAILURE,)) is None


def test_higher_step_is_progress_without_a_checkpoint(run: Run) -> None:
    """Copies in host memory continue the job, so that a job that makes steps may fail more often than it saves."""
    run.step("ready", 0)
    for attempt in range(1, 8):
        for node in run.nodes:
            run.connections.add_heartbeat(node, run.record.run, run.clock.monotonic(), 100 * attempt, attempt)
        run.controller.step()
        run.connections.connected.clear()  # the next event is read from S3
        failure = FAILURE.model_copy(update={"message": f"Error{attempt}: x"})
        assert run.step("workers_failed", attempt, (failure,)) is None
        run.controller.step()
    assert run.published.decisions[-1].last_step == 700


def test_next_attempt_waits_while_a_service_does_not_respond(run: Run) -> None:
    run.step("ready", 0)
    failure = FAILURE.model_copy(update={"local_rank": None, "message": "Throttled", "is_outage": True})
    run.step("workers_failed", 1, (failure,))
    run.controller.step()
    assert run.published.attempt == 1
    run.clock.advance(OUTAGE_RETRY_SECONDS)
    run.controller.step()
    assert run.published.attempt == 2


def test_restarted_controller_continues_the_attempt(run: Run) -> None:
    run.step("ready", 0)
    run.start_controller()
    run.write_results()
    run.write_checkpoint(3)
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert outcome.attempts == 1


def test_controller_waits_for_all_reports_of_a_failure(run: Run) -> None:
    run.step("ready", 0)
    peer_failure = FAILURE.model_copy(update={"rank": 0, "message": "RuntimeError: Connection reset by peer"})
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "workers_failed", 1, (peer_failure,))
    run.controller.step()
    control = run.control()
    assert control is not None
    assert control.waiting_since is None
    run.cluster.write_agent_event(run.record.run, run.nodes[1], "workers_failed", 1, (FAILURE,))
    run.controller.step()
    control = run.control()
    assert control is not None
    assert control.decisions[-1].failure == FAILURE


def test_restarted_controller_remembers_the_failure(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.controller.step()
    run.start_controller()
    outcome = run.step("workers_failed", 2, (FAILURE,))
    assert outcome is not None
    assert outcome.state == "failed"


def test_reports_of_the_run_before_are_ignored(run: Run) -> None:
    """Kept nodes report its end on the connection that the next run uses, too."""
    run.connections.connected.update(run.nodes)
    for node in run.nodes:
        run.connections.events += [
            agent_event("earlier", node, "stopped", 3),
            agent_event(run.record.run, node, "ready", 0),
        ]
    run.controller.step()
    assert run.published.attempt == 1
    run.connections.events += [agent_event(run.record.run, node, "workers_up", 1) for node in run.nodes]
    run.controller.step()
    assert run.published.started


def test_agents_abort_an_attempt_while_s3_does_not_respond(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.connections.connected.update(run.nodes)
    run.connections.events += [agent_event(run.record.run, node, "ready", 0) for node in run.nodes]
    run.controller.step()
    run.connections.events += [agent_event(run.record.run, node, "workers_up", 1) for node in run.nodes]
    run.controller.step()

    def fail(*_: object) -> None:
        raise EndpointConnectionError(endpoint_url="s3")

    with monkeypatch.context() as patch:
        patch.setattr(run.controller.state.data, "replace", fail)
        run.connections.events.append(agent_event(run.record.run, run.nodes[0], "rank_failed", 1))
        run.controller.step()
        assert run.connections.published[-1][1].aborted_attempt == 1
        assert run.published.aborted_attempt == 0
    run.connections.events += [agent_event(run.record.run, node, "workers_failed", 1) for node in run.nodes]
    run.controller.step()
    assert run.published.aborted_attempt == 1


def test_attempt_is_decided_while_auto_scaling_does_not_respond(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)

    def fail(*_: object) -> None:
        raise EndpointConnectionError(endpoint_url="autoscaling")

    monkeypatch.setattr(run.controller.groups, "members", fail)
    monkeypatch.setattr(run.controller.groups, "renew_lease", fail)
    run.controller.lease.request_renewal()
    run.clock.advance(MEMBERS_POLL_SECONDS + 1)
    run.step("workers_failed", 1, (FAILURE,))
    run.controller.step()
    assert run.published.attempt == 2
