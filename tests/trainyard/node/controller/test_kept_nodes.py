"""The controller keeps the nodes of a run that has ended for another run, and then terminates them."""

import time
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import FAILURE, Run
from trainyard.models.layout import CURRENT_RUN
from trainyard.models.run import Outcome
from trainyard.node.controller.controller import Controller
from trainyard.node.controller.lease import KEPT_LEASE_MARGIN_SECONDS
from trainyard.node.controller.outcomes import create_outcome


class EndedRun(Run):
    """A run of a custom job that ends in attempt 1, and the loop of its controller."""

    def __init__(self, **limits: float) -> None:
        cluster = create_cluster(REGION, train=None, command=("train.py",))
        changed = cluster.manifest.limits.model_copy(update=limits)
        cluster.manifest = cluster.manifest.model_copy(update={"limits": changed})
        super().__init__(cluster)
        cluster.staging.write(CURRENT_RUN, self.record.model_dump_json().encode())
        self.loop = Controller(self.node, cluster.manifest, self.connections)

    def end(self, state: str, failures: tuple[Any, ...] = ()) -> None:
        """Let the job end in this state."""
        self.write_all_agent_events("ready", 0)
        self.loop.step()
        self.write_all_agent_events(state, self.published.attempt, failures)
        self.loop.step()

    def outcome(self) -> Outcome:
        content = self.cluster.data.find(self.layout.outcome)
        assert content is not None
        return Outcome.model_validate_json(content)

    def expire(self) -> None:
        """Let the time for which the nodes are kept end."""
        ended = self.outcome().model_copy(update={"nodes_kept_until": time.time() - 1})
        self.cluster.data.write(self.layout.outcome, ended.model_dump_json().encode())
        self.loop.step()


@pytest.fixture
def kept(account: EmulatedAws) -> EndedRun:
    return EndedRun(keep_after_success_minutes=5.0, keep_after_failure_minutes=10.0)


def test_nodes_are_terminated_at_once_without_the_setting(account: EmulatedAws) -> None:
    run = EndedRun()
    run.end("workers_done")
    assert run.outcome().nodes_kept_until is None
    assert run.cluster.describe_group()["DesiredCapacity"] == 0


def test_nodes_are_kept_after_success_and_agents_stop(kept: EndedRun) -> None:
    kept.end("workers_done")
    assert kept.outcome().nodes_kept_until == pytest.approx(time.time() + 300, abs=20)
    kept.loop.step()
    assert kept.published.stop
    assert len(kept.cluster.members()) == 2


def test_nodes_are_kept_after_a_failure_of_the_job(kept: EndedRun) -> None:
    kept.end("workers_failed", (FAILURE,))
    kept.write_all_agent_events("workers_failed", 1, (FAILURE,))
    kept.loop.step()
    kept.write_all_agent_events("workers_failed", kept.published.attempt, (FAILURE,))
    kept.loop.step()
    assert kept.outcome().state == "failed"
    assert kept.outcome().nodes_kept_until == pytest.approx(time.time() + 600, abs=20)
    assert len(kept.cluster.members()) == 2


def test_lease_of_kept_nodes_ends_shortly_after_their_time(kept: EndedRun) -> None:
    kept.end("workers_done")
    kept.loop = Controller(kept.node, kept.cluster.manifest, kept.connections)  # a restart
    kept.loop.step()
    assert kept.cluster.lease_end() == pytest.approx(time.time() + 300 + KEPT_LEASE_MARGIN_SECONDS, abs=20)


def test_launch_that_needs_the_nodes_longer_moves_the_lease_beyond_the_deadline(kept: EndedRun) -> None:
    kept.end("workers_done")
    kept.loop.step()
    until = kept.record.deadline + 60
    longer = kept.outcome().model_copy(update={"nodes_kept_until": until})
    kept.cluster.data.write(kept.layout.outcome, longer.model_dump_json().encode())
    limits = kept.record.limits.model_copy(update={"lease_minutes": 10_000.0})
    kept.cluster.staging.write(
        CURRENT_RUN, kept.record.model_copy(update={"limits": limits}).model_dump_json().encode()
    )
    kept.loop.step()
    assert kept.cluster.lease_end() == pytest.approx(until + KEPT_LEASE_MARGIN_SECONDS, abs=2)


def test_outcome_of_a_launch_is_not_overwritten(kept: EndedRun) -> None:
    replaced = create_outcome(kept.controller.state, "stopped", "another run replaces it")
    kept.cluster.data.write(kept.layout.outcome, replaced.model_dump_json().encode())
    assert not kept.controller.write_outcome(create_outcome(kept.controller.state, "succeeded", "done"))
    assert kept.outcome() == replaced


def test_nodes_are_terminated_after_their_time(kept: EndedRun) -> None:
    kept.end("workers_done")
    kept.expire()
    assert kept.cluster.describe_group()["DesiredCapacity"] == 0


def test_time_limit_ends_the_time_for_which_nodes_are_kept(account: EmulatedAws) -> None:
    run = EndedRun(keep_after_success_minutes=600.0)
    run.end("workers_done")
    assert run.outcome().nodes_kept_until == pytest.approx(run.record.deadline)


def test_time_limit_keeps_no_nodes(kept: EndedRun) -> None:
    outcome = create_outcome(kept.controller.state, "failed", "the time limit is over")
    assert outcome.nodes_kept_until is None


def test_new_run_starts_on_kept_nodes_without_a_health_check(kept: EndedRun) -> None:
    kept.end("workers_done")
    fields = {"previous_run": kept.record.run, "healthy_nodes": tuple(kept.nodes)}
    limits = kept.record.limits.model_copy(update={"health_check_timeout_minutes": 1.0})
    kept.record = kept.cluster.create_run_record().model_copy(update={**fields, "limits": limits})
    kept.layout = type(kept.layout)(kept.record.run)
    kept.cluster.staging.write(CURRENT_RUN, kept.record.model_dump_json().encode())
    kept.write_all_agent_events("ready", 0)
    kept.loop.step()
    assert kept.published.attempt == 1
    assert kept.published.health_check is None
    assert len(kept.cluster.members()) == 2
