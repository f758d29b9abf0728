"""The controller against a real group and real objects: attempts, the lease, and every way to end."""

import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests.clusters import Cluster, build, stamp
from tests.conftest import REGION
from trainyard.config.training import TrainerConfig
from trainyard.models.events import ActivityEvent, RankFailure
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import Results
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.node.controller import controller
from trainyard.node.controller.controller import Supervision
from trainyard.node.identity import Node

FAILURE = RankFailure(rank=3, time=1.0, exitcode=1, message="ValueError: bad", traceback="Traceback")


class Run:
    """A run under supervision, with two nodes in its group."""

    def __init__(self, cluster: Cluster, **record: Any) -> None:
        self.cluster = cluster
        self.nodes = cluster.launch(2)
        self.record: RunRecord = cluster.record(**record)
        self.layout = RunLayout(self.record.run)
        self.supervise()

    def supervise(self) -> None:
        """A controller, or one that was started again."""
        node = Node(
            role="head",
            instance="i-head",
            address="127.77.9.2",
            boot="0001",
            region=REGION,
            manifest_uri="",
            bundle="",
        )
        self.supervision = Supervision(node, self.cluster.manifest, self.record)

    def all_say(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        for node in self.nodes:
            self.cluster.agent(self.record.run, node, state, attempt, failures)

    def step(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> Outcome | None:
        self.all_say(state, attempt, failures)
        return self.supervision.step()

    def control(self) -> Control | None:
        found = self.cluster.data.find(self.layout.control)
        return None if found is None else Control.model_validate_json(found)

    def leave_results(self) -> None:
        results = Results(
            run=self.record.run,
            steps=3,
            world_size=4,
            first_loss=5.0,
            last_loss=2.0,
            validation_loss=2.0,
            samples=5,
            tokens=10,
            seconds=1.0,
            figures=None,
            parameters=10,
            checkpoints=(),
            data="s3://d/",
            config=TrainerConfig(),
            code_sha256="0" * 64,
            versions={},
        )
        self.cluster.data.write(f"{self.layout.results}results.json", results.model_dump_json().encode())

    def leave_checkpoint(self, step: int) -> None:
        self.cluster.data.write(f"{self.layout.checkpoints}step-{step:08d}/.metadata", b"x")


@pytest.fixture
def run(account: EmulatedAws) -> Run:
    return Run(build(REGION))


def test_an_attempt_opens_when_all_nodes_are_ready(run: Run) -> None:
    run.cluster.agent(run.record.run, run.nodes[0], "ready", 0)
    assert run.supervision.step() is None
    assert run.control() is None
    run.cluster.agent(run.record.run, run.nodes[1], "ready", 0)
    run.supervision.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes), control.stop) == (1, set(run.nodes), False)


def test_a_done_job_with_results_has_succeeded(run: Run) -> None:
    run.step("ready", 0)
    run.leave_results()
    run.leave_checkpoint(3)
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)


@pytest.mark.parametrize("absent", ["results", "checkpoint"])
def test_done_without_what_it_should_leave_has_failed(run: Run, absent: str) -> None:
    run.step("ready", 0)
    if absent == "results":
        run.leave_checkpoint(3)
    else:
        run.leave_results()
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert outcome.state == "failed"
    assert absent in outcome.reason


def test_a_users_job_is_asked_for_nothing(account: EmulatedAws) -> None:
    run = Run(build(REGION, train=None, command=("train.py",)))
    run.step("ready", 0)
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert outcome.state == "succeeded"


def test_a_lost_attempt_is_followed_by_the_next(run: Run) -> None:
    run.step("ready", 0)
    assert run.step("workers_failed", 1, (FAILURE,)) is None
    assert run.supervision.step() is None
    control = run.control()
    assert control is not None
    assert control.attempt == 2


def test_the_same_failure_twice_ends_the_run(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.supervision.step()
    outcome = run.step("workers_failed", 2, (FAILURE,))
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.failure == FAILURE
    assert outcome.culprit in run.nodes


def test_progress_between_failures_goes_on(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.supervision.step()
    run.leave_checkpoint(20)
    assert run.step("workers_failed", 2, (FAILURE,)) is None


def test_a_node_that_left_the_group_loses_the_attempt(run: Run) -> None:
    run.step("ready", 0)
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.supervision._members_at = 0.0
    run.supervision.step()
    (replacement,) = run.cluster.launch(1)
    run.nodes[0] = replacement
    run.cluster.agent(run.record.run, replacement, "ready", 0)
    run.supervision._members_at = 0.0
    run.supervision.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes)) == (2, set(run.nodes))


def test_a_controller_started_again_goes_on_with_the_attempt(run: Run) -> None:
    run.step("ready", 0)
    run.supervise()
    run.leave_results()
    run.leave_checkpoint(3)
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert outcome.attempts == 1


def test_the_lease_moves_forward_but_never_past_the_time_limit(account: EmulatedAws) -> None:
    run = Run(build(REGION), minutes=10.0)
    run.supervision.step()
    assert run.cluster.lease() == pytest.approx(run.record.deadline, abs=1.0)
    longer = Run(build(REGION), minutes=600.0)
    longer.supervision.step()
    assert longer.cluster.lease() == pytest.approx(time.time() + 20 * 60, abs=10.0)


def test_no_renewal_reaches_past_the_time_limit(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of 20 minutes under a limit of 50, a minute from step to step: looked up in the account after each."""
    run = Run(build(REGION), created=float(int(time.time())), minutes=50.0)  # AWS tells microseconds
    limits = run.record.limits.model_copy(update={"lease_minutes": 20.0, "bring_up_minutes": 60.0})
    run.record = run.record.model_copy(update={"limits": limits})
    run.supervise()
    minutes = count(run.record.created, 60.0)
    monkeypatch.setattr(controller, "time", SimpleNamespace(time=lambda: next(minutes)))
    seen: set[float] = set()
    while run.supervision.step() is None:
        lease = run.cluster.lease()
        assert lease is not None
        assert lease <= run.record.deadline + 0.001  # AWS keeps less than a float does
        seen.add(lease)
    assert len(seen) == 1 + 30 / 5  # four times in its length it moves, until it is at the limit
    assert max(seen) > run.record.deadline - 1


@pytest.mark.parametrize(
    ("created", "minutes", "reason"),
    [(0.0, 60.0, "the time limit of 60 minutes is over"), (3000.0, 600.0, "had not started within 5 minutes")],
)
def test_a_deadline_ends_the_run(account: EmulatedAws, created: float, minutes: float, reason: str) -> None:
    began = time.time() - 3700 if created == 0.0 else time.time() - created
    run = Run(build(REGION), created=began, minutes=minutes)
    outcome = run.supervision.step()
    assert outcome is not None
    assert outcome.state == "failed"
    assert reason in outcome.reason


def test_the_end_stops_agents_and_bill(run: Run) -> None:
    run.step("ready", 0)
    run.supervision.end(run.supervision.outcome("succeeded", "done"))
    control = run.control()
    assert control is not None
    assert control.stop
    assert run.cluster.described()["DesiredCapacity"] == 0
    assert run.cluster.data.find(run.layout.outcome) is not None


def test_the_first_report_of_a_failure_is_not_taken_for_the_whole(run: Run) -> None:
    run.step("ready", 0)
    echo = FAILURE.model_copy(update={"rank": 0, "message": "RuntimeError: Connection reset by peer"})
    run.cluster.agent(run.record.run, run.nodes[0], "workers_failed", 1, (echo,))
    run.supervision.step()
    control = run.control()
    assert control is not None
    assert control.waiting_since is None
    run.cluster.agent(run.record.run, run.nodes[1], "workers_failed", 1, (FAILURE,))
    run.supervision.step()
    control = run.control()
    assert control is not None
    assert control.lost is not None
    assert control.lost.failure == FAILURE


def test_a_controller_started_again_remembers_the_failure(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_failed", 1, (FAILURE,))
    run.supervision.step()
    run.supervise()
    outcome = run.step("workers_failed", 2, (FAILURE,))
    assert outcome is not None
    assert outcome.state == "failed"


def test_a_started_job_has_no_bring_up_deadline(account: EmulatedAws) -> None:
    run = Run(build(REGION))
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.record = run.record.model_copy(update={"created": run.record.created - 3000})
    run.supervise()
    assert run.supervision.step() is None


def test_a_run_that_has_grown_goes_on_after_a_checkpoint(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    old, new = list(run.nodes), run.cluster.launch(1)
    run.supervision.run = run.record.model_copy(update={"nodes": 3})
    run.supervision._members_at = 0.0
    run.supervision.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes)) == (1, set(old))  # the new node's agent has not spoken
    run.cluster.agent(run.record.run, new[0], "ready", 0)
    run.supervision.step()
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes), control.save) == (2, {*old, *new}, True)


def test_a_growth_that_was_taken_back_goes_on_with_the_old_nodes(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    old, new = list(run.nodes), run.cluster.launch(1)
    run.supervision.run = run.record.model_copy(update={"nodes": 3})
    run.supervision._members_at = 0.0
    run.cluster.agent(run.record.run, new[0], "ready", 0)
    run.supervision.step()
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=new[0], ShouldDecrementDesiredCapacity=True
    )
    run.supervision.run = run.record
    for _ in range(2):
        run.supervision._members_at = 0.0
        assert run.supervision.step() is None
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes), control.save) == (3, set(old), False)


def hurried(run: Run) -> None:
    """A bring-up that takes no time."""
    limits = run.record.limits.model_copy(update={"bring_up_minutes": 1e-6})
    run.supervision.run = run.record.model_copy(update={"limits": limits})
    run.supervision._members_at = 0.0


def test_a_node_that_no_attempt_takes_in_goes(run: Run) -> None:
    """As after a launch that was killed while it grew the run."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    old, new = list(run.nodes), run.cluster.launch(1)
    run.supervision._members_at = 0.0
    run.supervision.step()
    assert sorted(run.cluster.members()) == sorted([*old, *new])  # it may still come up
    hurried(run)
    assert run.supervision.step() is None
    assert sorted(run.cluster.members()) == sorted(old)
    assert run.cluster.described()["DesiredCapacity"] == 2


def test_nodes_that_do_not_come_back_end_the_run(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.supervision._members_at = 0.0
    assert run.supervision.step() is None
    hurried(run)
    outcome = run.supervision.step()
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.reason.startswith("1 of 2 nodes were ready 1e-06 minutes after attempt 1 was lost")


def test_what_the_time_limit_ends_is_saved_first(account: EmulatedAws) -> None:
    run = Run(build(REGION))
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.supervision.end(run.supervision.outcome("failed", "the time limit of 60 minutes is over"))
    control = run.control()
    assert control is not None
    assert (control.stop, control.save) == (True, True)


def test_a_run_whose_ranks_have_ended_is_asked_for_nothing(run: Run) -> None:
    run.step("ready", 0)
    run.supervision.end(run.supervision.outcome("succeeded", "3 steps"))
    control = run.control()
    assert control is not None
    assert (control.stop, control.save) == (True, False)


def test_after_a_growth_that_came_to_nothing_the_old_nodes_go_on(run: Run) -> None:
    """A lost attempt of two nodes does not wait for ever for a third that a killed launch had asked for."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    hurried(run)
    run.supervision.run = run.supervision.run.model_copy(update={"nodes": 3})
    assert run.step("workers_failed", 1, (FAILURE,)) is None
    assert run.supervision.step() is None
    control = run.control()
    assert control is not None
    assert (control.attempt, set(control.nodes)) == (2, set(run.nodes))


def test_a_node_that_can_not_be_ended_hides_nothing_of_the_job(run: Run, account: EmulatedAws) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.launch(1)
    hurried(run)
    run.supervision.step()
    account.inject(Deny(operation="autoscaling:TerminateInstanceInAutoScalingGroup"))
    try:
        assert run.supervision.step() is None
        run.leave_results()
        run.leave_checkpoint(3)
        outcome = run.step("workers_done", 1)
    finally:
        account.clear_faults()
    assert outcome is not None
    assert outcome.state == "succeeded"


def idle(run: Run, node: str, since: float | None, attempt: int = 1) -> None:
    """The node's agent says since when its job has been idle."""
    told = {"run": run.record.run, "attempt": attempt, "idle_since": since, "measured": "cpu", "percent": 0.2}
    run.cluster.say(run.record.run, node, ActivityEvent.model_validate({**stamp(node, "worker"), **told}))


@pytest.fixture
def limited(run: Run) -> Run:
    """A run that has started, under a limit of ten idle minutes."""
    limits = run.record.limits.model_copy(update={"idle_minutes": 10.0})
    run.supervision.run = run.record = run.record.model_copy(update={"limits": limits})
    run.step("ready", 0)
    run.step("workers_up", 1)
    return run


def test_a_run_that_is_idle_everywhere_is_stopped(limited: Run) -> None:
    for node in limited.nodes:
        idle(limited, node, time.time() - 601)
    outcome = limited.supervision.step()
    assert outcome is not None
    assert outcome.state == "stopped"
    assert outcome.reason.startswith("no node has worked for 10 minutes: its CPU use was under 5 %")
    limited.supervision.end(outcome)
    control = limited.control()
    assert control is not None
    assert (control.stop, control.save) == (True, True)


@pytest.mark.parametrize("since", [None, 590.0, "nothing"])
def test_one_node_that_is_not_known_to_be_idle_keeps_the_run(limited: Run, since: float | str | None) -> None:
    idle(limited, limited.nodes[0], time.time() - 601)
    if not isinstance(since, str):
        idle(limited, limited.nodes[1], since and time.time() - since)
    assert limited.supervision.step() is None


def test_without_a_limit_an_idle_run_goes_on(run: Run) -> None:
    run.step("ready", 0)
    run.step("workers_up", 1)
    for node in run.nodes:
        idle(run, node, time.time() - 10_000)
    assert run.supervision.step() is None


def test_a_node_that_says_that_it_goes_loses_the_attempt_and_is_in_no_other(run: Run) -> None:
    """As after a spot notice, of which the group knows nothing for two minutes."""
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.agent(run.record.run, run.nodes[0], "left", 1)
    for _ in range(2):
        assert run.supervision.step() is None
    control = run.control()
    assert control is not None
    assert control.waiting_since is not None
    assert control.attempt == 1
    (replacement,) = run.cluster.launch(1)
    run.cluster.agent(run.record.run, replacement, "ready", 0)
    run.supervision._members_at = 0.0
    run.supervision.step()
    control = run.control()
    assert control is not None
    assert set(control.nodes) == {run.nodes[1], replacement}


def test_the_end_of_the_capacity_is_told_as_that(account: EmulatedAws) -> None:
    run = Run(build(REGION), created=time.time() - 600, minutes=9.0)
    outcome = run.supervision.step()
    assert outcome is not None
    assert outcome.reason == "its capacity's time is over"
