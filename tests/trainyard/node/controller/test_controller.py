"""The controller with an emulated AWS account: attempts, the lease, and every outcome of a run."""

import logging
import time
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from rehearsal.aws.faults import Capacity, Deny, MemberOmission
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.clusters import Cluster, create_cluster, event_fields, ubuntu_image_id
from tests.conftest import REGION
from tests.connections import AdjustableClock, FakeConnections
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.reservations import cancel_reservation, create_reservation, resize_reservation
from trainyard.config.training import TrainerConfig
from trainyard.models.decision import AttemptDecision
from trainyard.models.events import ActivityEvent, AgentEvent, PlaybookEvent, RankFailure
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.metrics import Results
from trainyard.models.node_health import HealthFinding, NodeHealth
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.models.startup_failures import PLAYBOOK_RETRY_SECONDS
from trainyard.node.controller import reservations as run_reservations
from trainyard.node.controller.account import Account
from trainyard.node.controller.attempts import (
    FAILURE_REPORT_TIMEOUT_SECONDS,
    SMALLER_SIZE_SECONDS,
)
from trainyard.node.controller.controller import Controller
from trainyard.node.controller.liveness import SILENCE_SECONDS
from trainyard.node.controller.node_selection import WAITING_SILENCE_SECONDS
from trainyard.node.controller.outcomes import create_outcome
from trainyard.node.controller.run_controller import RunController
from trainyard.node.controller.stragglers import SLOW_STEPS
from trainyard.node.controller.worker_groups import LAUNCH_FIRST_SECONDS
from trainyard.node.identity import Node

FAILURE = RankFailure(rank=3, local_rank=1, time=1.0, exitcode=1, message="ValueError: bad", traceback="Traceback")


class Run:
    """A run with its controller and two nodes."""

    def __init__(self, cluster: Cluster, **record: Any) -> None:
        self.cluster = cluster
        self.nodes = cluster.launch_instances(2)
        self.record: RunRecord = cluster.create_run_record(**record)
        self.layout = RunLayout(self.record.run)
        self.start_controller()

    def start_controller(self) -> None:
        """Start the controller, or restart it."""
        self.node = Node(
            role="head",
            instance="i-head",
            address="127.77.9.2",
            boot="0001",
            region=REGION,
            manifest_uri="",
            bundle="",
        )
        self.connections, self.clock = FakeConnections(), AdjustableClock()
        self.controller = RunController(
            self.node, self.cluster.manifest, self.record, Account(REGION), self.connections, self.clock
        )

    def write_all_agent_events(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        for node in self.nodes:
            self.cluster.write_agent_event(self.record.run, node, state, attempt, failures)

    def step(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> Outcome | None:
        self.write_all_agent_events(state, attempt, failures)
        return self.controller.step()

    def step_with_members(self) -> Outcome | None:
        """A step of the controller that reads the members of the groups."""
        self.controller._members_at = None
        return self.controller.step()

    def step_until_loss(self) -> Outcome | None:
        """Steps after which a member that has left its group is lost: it is missing from two responses."""
        self.step_with_members()
        return self.step_with_members()

    def step_after_reports(self) -> Outcome | None:
        """A step after the time in which nodes report a failure, and are found to be silent."""
        self.clock.advance(max(FAILURE_REPORT_TIMEOUT_SECONDS, SILENCE_SECONDS) + 1)
        return self.controller.step()

    def send_heartbeats(self, *nodes: str) -> None:
        for node in nodes:
            self.connections.add_heartbeat(node, self.record.run, self.clock.monotonic())

    def control(self) -> Control | None:
        content = self.cluster.data.find(self.layout.control)
        return None if content is None else Control.model_validate_json(content)

    @property
    def published(self) -> Control:
        """The state that the controller has published."""
        control = self.control()
        assert control is not None
        return control

    def write_results(self) -> None:
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

    def write_checkpoint(self, step: int) -> None:
        self.cluster.data.write(f"{self.layout.checkpoints}step-{step:08d}/.metadata", b"x")


def end_run(controller: RunController, outcome: Outcome) -> None:
    """End a run with this outcome, as the controller's loop does."""
    controller.write_outcome(outcome)
    controller.end_run(outcome)


@pytest.fixture
def run(account: EmulatedAws) -> Run:
    return Run(create_cluster(REGION))


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


def test_restarted_controller_continues_the_attempt(run: Run) -> None:
    run.step("ready", 0)
    run.start_controller()
    run.write_results()
    run.write_checkpoint(3)
    outcome = run.step("workers_done", 1)
    assert outcome is not None
    assert outcome.attempts == 1


def test_lease_is_renewed_up_to_the_time_limit(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION), minutes=10.0)
    run.controller.step()
    assert run.cluster.lease_end() == pytest.approx(run.record.deadline, abs=1.0)
    long_run = Run(create_cluster(REGION), minutes=600.0)
    long_run.controller.step()
    assert long_run.cluster.lease_end() == pytest.approx(time.time() + 20 * 60, abs=10.0)


def reserve(run: Run) -> str:
    """Give a run a capacity reservation that ends in two minutes; return its id."""
    reservation = create_reservation(
        REGION,
        instance_type="c7i.xlarge",
        zone="us-east-1a",
        instances=2,
        end=time.time() + 120,
        placement_group_arn=None,
        tags={tags.STACK: run.cluster.stack},
        token=run.record.run,
    ).id
    run.record = run.record.model_copy(update={"reservations": (reservation,)})
    run.start_controller()
    return reservation


def describe_reservation(name: str) -> dict[str, Any]:
    response = client("ec2", REGION).describe_capacity_reservations(CapacityReservationIds=[name])
    return dict(response["CapacityReservations"][0])


def test_reservation_ends_with_the_lease(run: Run) -> None:
    name = reserve(run)
    run.controller.step()
    end, lease = describe_reservation(name)["EndDate"].timestamp(), run.cluster.lease_end()
    cancel_reservation(REGION, name)  # it would limit the capacity of other tests
    assert end == pytest.approx(lease, abs=2.0)


def test_reservation_is_cancelled_with_the_run(run: Run) -> None:
    name = reserve(run)
    end_run(run.controller, create_outcome(run.controller.state, "stopped", "test"))
    assert describe_reservation(name)["State"] == "cancelled"


@pytest.mark.parametrize(("waiting_since", "instances"), [(None, 1), (1.0, 3)])
def test_unused_capacity_is_removed_unless_the_run_misses_nodes(
    run: Run, waiting_since: float | None, instances: int
) -> None:
    """A scale-out that failed or was killed leaves a reservation that is larger than the run."""
    name = reserve(run)
    resize_reservation(REGION, name, 3)
    target = {"CapacityReservationTarget": {"CapacityReservationId": name}}
    parameters = {"ImageId": ubuntu_image_id(REGION), "InstanceType": "c7i.xlarge", "MinCount": 1, "MaxCount": 1}
    client("ec2", REGION).run_instances(
        **parameters, CapacityReservationSpecification=target, Placement={"AvailabilityZone": "us-east-1a"}
    )
    run.controller.state.control = Control(attempt=1, nodes=tuple(run.nodes), waiting_since=waiting_since)
    run.controller.state.members = [*run.nodes]
    now = time.time()
    run.controller.lease.renew_for_kept_nodes(now, now + 600)
    assert describe_reservation(name)["TotalInstanceCount"] == 3  # a scale-out may be about to use it
    run.controller.lease.renew_for_kept_nodes(now + run_reservations.UNUSED_SECONDS + 1, now + 1200)
    remaining = describe_reservation(name)["TotalInstanceCount"]
    cancel_reservation(REGION, name)
    assert remaining == instances


@pytest.mark.parametrize(("is_kept", "state"), [(True, "active"), (False, "cancelled")])
def test_reservation_that_a_new_run_uses_is_kept(run: Run, is_kept: bool, state: str) -> None:
    name = reserve(run)
    outcome = create_outcome(run.controller.state, "stopped", "test").model_copy(update={"keeps_reservations": is_kept})
    run.cluster.data.write(run.layout.outcome, outcome.model_dump_json().encode())
    run.cluster.staging.write(CURRENT_RUN, run.record.model_dump_json().encode())
    Controller(run.node, run.cluster.manifest, run.connections).step()
    assert describe_reservation(name)["State"] == state
    cancel_reservation(REGION, name)


@pytest.mark.parametrize("cause", ["pending", "denied"])
def test_cancellation_is_repeated_until_it_succeeds(
    account: EmulatedAws, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cause: str
) -> None:
    """A reservation that remains is billed until an hour after the lease."""
    monkeypatch.setattr(run_reservations, "CANCEL_POLL_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "controller")
    account.set_timing(Timing(reservation_pending_seconds=2 if cause == "pending" else 0))
    name = reserve(run)
    account.set_timing(Timing())
    denied = Deny(operation="ec2:CancelCapacityReservation")
    if cause == "denied":
        account.inject(denied)
    outcome = create_outcome(run.controller.state, "stopped", "test")
    run.cluster.data.write(run.layout.outcome, outcome.model_dump_json().encode())
    run.cluster.staging.write(CURRENT_RUN, run.record.model_dump_json().encode())
    controller = Controller(run.node, run.cluster.manifest, run.connections)
    for _ in range(3):
        controller.step()
    account.remove_faults([denied])
    deadline = time.monotonic() + 20
    while describe_reservation(name)["State"] != "cancelled" and time.monotonic() < deadline:
        controller.step()
    assert describe_reservation(name)["State"] == "cancelled"
    assert sum(name in record.getMessage() for record in caplog.records) == 1
    calls = len(account.journal())
    controller.step()
    assert "CancelCapacityReservation" not in {entry.operation for entry in account.journal()[calls:]}


def test_reservation_that_has_ended_does_not_fail_the_run(run: Run) -> None:
    cancel_reservation(REGION, reserve(run))
    assert run.controller.step() is None
    end_run(run.controller, create_outcome(run.controller.state, "stopped", "test"))
    assert run.cluster.members() == []


def test_no_renewal_exceeds_the_time_limit(account: EmulatedAws) -> None:
    """A lease of 20 minutes and a time limit of 50 minutes, with one minute between steps."""
    run = Run(create_cluster(REGION), created=float(int(time.time())), minutes=50.0)  # AWS returns microseconds
    limits = run.record.limits.model_copy(update={"lease_minutes": 20.0, "startup_timeout_minutes": 60.0})
    run.record = run.record.model_copy(update={"limits": limits})
    for node in run.nodes:
        run.cluster.write_playbook_event(run.record.run, node, "started")
    run.start_controller()
    run.clock.advance(run.record.created - time.time())
    leases: set[float] = set()
    while run.controller.step() is None:
        run.clock.advance(60.0)
        lease = run.cluster.lease_end()
        assert lease is not None
        assert lease <= run.record.deadline + 0.001  # AWS stores fewer digits than a float
        leases.add(lease)
    assert len(leases) == 1 + 30 / 5  # it is renewed four times in its duration, until it is at the limit
    assert max(leases) > run.record.deadline - 1


@pytest.mark.parametrize(
    ("created", "minutes", "reason"),
    [(0.0, 60.0, "the time limit of 60 minutes is over"), (3000.0, 600.0, "did not start within 5 minutes")],
)
def test_deadline_ends_the_run(account: EmulatedAws, created: float, minutes: float, reason: str) -> None:
    created_at = time.time() - 3700 if created == 0.0 else time.time() - created
    run = Run(create_cluster(REGION), created=created_at, minutes=minutes)
    outcome = run.controller.step()
    assert outcome is not None
    assert (outcome.state, outcome.launch_failed) == ("failed", True)  # the job has not started
    assert reason in outcome.reason


def test_node_that_cannot_be_configured_ends_a_run_that_has_not_started(run: Run) -> None:
    for after in (0.0, 2 * PLAYBOOK_RETRY_SECONDS):
        run.cluster.write_playbook_event(run.record.run, run.nodes[0], "failed", "no mirror", after)
    outcome = run.controller.step()
    assert outcome is not None
    assert outcome.reason == f"node {run.nodes[0]} could not be configured: no mirror"
    assert outcome.launch_failed


class StartingRun(Run):
    """A run whose nodes start."""

    def allow_replacements(self, count: int) -> None:
        """Let the controller replace this number of nodes."""
        limits = self.record.limits.model_copy(update={"max_startup_replacements": count})
        self.record = self.record.model_copy(update={"limits": limits})
        self.start_controller()

    def fail_startup(self, node: str, message: str = "no mirror", *, is_permanent: bool = False) -> None:
        for after in (0.0, 2 * PLAYBOOK_RETRY_SECONDS):
            fields = {**event_fields(node, "worker", after), "status": "failed", "message": message}
            event = PlaybookEvent.model_validate({**fields, "is_permanent": is_permanent})
            self.cluster.write_event(self.record.run, node, event)

    def replace(self, node: str) -> str:
        """Remove a node from its group, and launch another."""
        members = set(self.cluster.members())
        self.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=node, ShouldDecrementDesiredCapacity=True
        )
        self.cluster.launch_instances(1)
        self.step_until_loss()
        return (set(self.cluster.members()) - members).pop()


@pytest.fixture
def starting_run(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> StartingRun:
    run = StartingRun(create_cluster(REGION))
    run.allow_replacements(2)
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", lambda node: None)
    return run


def test_node_that_cannot_start_is_replaced(starting_run: StartingRun) -> None:
    first, _ = starting_run.nodes
    starting_run.fail_startup(first)
    assert starting_run.controller.step() is None
    assert starting_run.published.failed_startups == {first: "no mirror"}
    assert starting_run.published.unhealthy_nodes == (first,)
    assert starting_run.controller.step() is None


def test_failure_of_a_second_node_in_the_same_way_ends_the_launch(starting_run: StartingRun) -> None:
    first, second = starting_run.nodes
    starting_run.fail_startup(first)
    starting_run.controller.step()
    starting_run.fail_startup(second)
    outcome = starting_run.controller.step()
    assert outcome is not None
    assert outcome.reason.endswith(f"no mirror. The startup of {first} failed in the same way before")


def test_permanent_failure_of_startup_ends_the_launch(starting_run: StartingRun) -> None:
    starting_run.fail_startup(starting_run.nodes[0], is_permanent=True)
    outcome = starting_run.controller.step()
    assert outcome is not None
    assert outcome.reason.endswith("could not be configured: no mirror")


def test_replacements_of_startup_are_limited(starting_run: StartingRun) -> None:
    node = starting_run.nodes[0]
    for number in range(2):
        starting_run.fail_startup(node, f"reason {number}")
        assert starting_run.controller.step() is None
        node = starting_run.replace(node)
    starting_run.fail_startup(node, "reason 2")
    outcome = starting_run.controller.step()
    assert outcome is not None
    assert outcome.reason.endswith("reason 2, after 2 replacements (launch.max_startup_replacements)")


def test_added_node_that_fails_is_not_replaced_by_the_controller(starting_run: StartingRun) -> None:
    starting_run.step("ready", 0)
    (added,) = starting_run.cluster.launch_instances(1)
    starting_run.fail_startup(added)
    starting_run.step_with_members()
    assert starting_run.published.failed_startups == {}


def test_end_of_the_run_stops_agents_and_instances(run: Run) -> None:
    run.step("ready", 0)
    end_run(run.controller, create_outcome(run.controller.state, "succeeded", "done"))
    control = run.control()
    assert control is not None
    assert control.stop
    assert run.cluster.describe_group()["DesiredCapacity"] == 0
    assert run.cluster.data.find(run.layout.outcome) is not None


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


def test_started_job_has_no_startup_deadline(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION))
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.record = run.record.model_copy(update={"created": run.record.created - 3000})
    run.start_controller()
    assert run.controller.step() is None


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


class RunWithSpare(Run):
    """A run on two nodes with a third node as a spare. Health checks are on."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        limits = self.record.limits.model_copy(update={"health_check_timeout_minutes": 3.0, "smaller_sizes": (1,)})
        self.record = self.record.model_copy(update={"limits": limits, "spares": 1})
        self.nodes = [*self.nodes, *cluster.launch_instances(1)]
        self.start_controller()

    def pass_health_check(self) -> tuple[str, ...]:
        """Let the nodes of the requested health check pass it; return them."""
        request = self.published.health_check
        assert request is not None
        for node in request.nodes:
            self.cluster.write_health_check_event(self.record.run, node, request.number)
        self.controller.step()
        return request.nodes


@pytest.fixture
def run_with_spare(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> RunWithSpare:
    run = RunWithSpare(create_cluster(REGION))
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", lambda node: None)
    run.step("ready", 0)
    run.pass_health_check()
    assert run.published.attempt == 1
    run.step("workers_up", 1)
    return run


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
    remaining = run.published.nodes[0]
    for node in set(run.nodes) - {remaining}:
        run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=node, ShouldDecrementDesiredCapacity=True
        )
    run.step_until_loss()
    assert run.published.attempt == 1
    run.clock.advance(SMALLER_SIZE_SECONDS + 1)
    run.send_heartbeats(remaining)
    run.controller.step()
    assert (run.published.attempt, run.published.nodes) == (2, (remaining,))
    run.cluster.write_agent_event(run.record.run, remaining, "workers_up", 2)
    (replacement,) = run.cluster.launch_instances(1)
    run.cluster.write_agent_event(run.record.run, replacement, "ready", 0)
    run.step_with_members()
    assert run.pass_health_check() == (replacement,)
    assert (run.published.attempt, set(run.published.nodes)) == (3, {remaining, replacement})
    assert run.published.save_checkpoint


def test_time_limit_requests_a_last_checkpoint(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION))
    run.step("ready", 0)
    run.step("workers_up", 1)
    end_run(run.controller, create_outcome(run.controller.state, "failed", "the time limit of 60 minutes is over"))
    control = run.control()
    assert control is not None
    assert (control.stop, control.save_checkpoint) == (True, True)


def test_completed_run_requests_no_checkpoint(run: Run) -> None:
    run.step("ready", 0)
    end_run(run.controller, create_outcome(run.controller.state, "succeeded", "3 steps"))
    control = run.control()
    assert control is not None
    assert (control.stop, control.save_checkpoint) == (True, False)


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


def test_end_of_the_capacity_is_the_reason(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION), created=time.time() - 600, minutes=9.0)
    outcome = run.controller.step()
    assert outcome is not None
    assert outcome.reason.startswith("the capacity of the run (capacity) was usable until")


def agent_event(run: str, node: str, state: str, attempt: int) -> AgentEvent:
    fields = {"run": run, "attempt": attempt, "state": state, "address": "127.77.9.9"}
    return AgentEvent.model_validate({**event_fields(node, "worker"), **fields})


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


def test_node_that_fails_to_start_after_the_first_attempt_is_replaced_again(starting_run: StartingRun) -> None:
    run = starting_run
    run.step("ready", 0)
    run.step("workers_up", 1)
    first = run.replace(run.nodes[0])
    run.fail_startup(first)
    assert run.controller.step() is None
    second = run.replace(first)
    run.fail_startup(second)
    assert run.controller.step() is None
    assert set(run.published.unhealthy_nodes) >= {first, second}


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


def test_agents_abort_an_attempt_while_s3_does_not_respond(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.connections.connected.update(run.nodes)
    run.connections.events += [agent_event(run.record.run, node, "ready", 0) for node in run.nodes]
    run.controller.step()
    run.connections.events += [agent_event(run.record.run, node, "workers_up", 1) for node in run.nodes]
    run.controller.step()

    def fail(*_: object) -> None:
        raise EndpointConnectionError(endpoint_url="s3")

    with monkeypatch.context() as patch:
        patch.setattr(run.controller.state.data, "write", fail)
        run.connections.events.append(agent_event(run.record.run, run.nodes[0], "rank_failed", 1))
        run.controller.step()
        assert run.connections.published[-1][1].aborted_attempt == 1
        assert run.published.aborted_attempt == 0
    run.connections.events += [agent_event(run.record.run, node, "workers_failed", 1) for node in run.nodes]
    run.controller.step()
    assert run.published.aborted_attempt == 1


def put_termination_hook(cluster: Cluster) -> None:
    cluster.autoscaling.put_lifecycle_hook(
        AutoScalingGroupName=cluster.group,
        LifecycleHookName=cluster.manifest.groups[0].lifecycle_hook,
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=120,
    )


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


def test_draining_node_is_not_lost_before_it_has_saved_a_checkpoint(run: Run) -> None:
    put_termination_hook(run.cluster)
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.step_until_loss()
    assert (run.published.aborted_attempt, run.published.waiting_since) == (0, None)
    run.cluster.write_agent_event(run.record.run, run.nodes[0], "drained", 1)
    run.controller.step()
    (decision,) = run.published.decisions
    assert (decision.cause, decision.actions) == ("node", {run.nodes[0]: "none"})


def test_node_outside_its_group_is_not_marked_unhealthy(run: Run) -> None:
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=run.nodes[0], ShouldDecrementDesiredCapacity=True
    )
    run.controller.groups.mark_unhealthy(run.nodes[0])
