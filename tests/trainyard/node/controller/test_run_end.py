"""The lease, the reservations and the deadlines of a run, and its end."""

import logging
import time
from typing import Any
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.clusters import create_cluster, ubuntu_image_id
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import Run, end_run, put_termination_hook
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.reservations import cancel_reservation, create_reservation, resize_reservation
from trainyard.models.layout import CURRENT_RUN
from trainyard.models.run import Control, Outcome
from trainyard.node.controller import reservations as run_reservations
from trainyard.node.controller.controller import Controller
from trainyard.node.controller.outcomes import create_outcome
from trainyard.node.controller.run_controller import REMAINING_NODES_WARNING_SECONDS


def test_lease_is_renewed_up_to_the_time_limit(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION), minutes=10.0)
    run.controller.step()
    assert run.cluster.lease_end() == pytest.approx(run.record.deadline, abs=1.0)
    long_run = Run(create_cluster(REGION), minutes=600.0)
    long_run.controller.step()
    assert long_run.cluster.lease_end() == pytest.approx(time.time() + 20 * 60, abs=10.0)


def locked_keys(run: Run) -> set[str]:
    """The keys of the run's objects that Object Lock retains."""
    s3, data = client("s3", REGION), run.cluster.data
    return {
        key.removeprefix(run.layout.prefix)
        for key in data.keys(run.layout.prefix)
        if "ObjectLockMode" in s3.head_object(Bucket=data.name, Key=key)
    }


def with_lock(run: Run, *, enabled: bool = True) -> Run:
    """Let the run lock its results for 30 days. `enabled`: enable Object Lock on the bucket."""
    s3, bucket = client("s3", REGION), run.cluster.data.name
    if enabled:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        s3.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
    limits = run.record.limits.model_copy(update={"lock_results_days": 30})
    run.record = run.record.model_copy(update={"limits": limits})
    run.start_controller()
    run.write_results()
    run.write_checkpoint(3)
    return run


def end(run: Run, state: str) -> Outcome:
    assert run.controller.write_outcome(create_outcome(run.controller.state, state, "test"))
    return Outcome.model_validate_json(run.cluster.data.read(run.layout.outcome))


def test_results_of_a_run_that_succeeded_are_locked(run: Run) -> None:
    outcome = end(with_lock(run), "succeeded")
    assert locked_keys(run) == {"results/results.json"}
    assert outcome.results_locked_until == pytest.approx(outcome.ended_at + 30 * 86400)
    head = client("s3", REGION).head_object(Bucket=run.cluster.data.name, Key=f"{run.layout.results}results.json")
    assert head["ObjectLockMode"] == "GOVERNANCE"
    assert head["ObjectLockRetainUntilDate"].timestamp() == pytest.approx(outcome.results_locked_until, abs=1.0)


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_results_of_another_run_are_not_locked(run: Run, state: str) -> None:
    assert end(with_lock(run), state).results_locked_until is None
    assert locked_keys(run) == set()


def test_run_ends_though_its_results_cannot_be_locked(run: Run) -> None:
    outcome = end(with_lock(run, enabled=False), "succeeded")
    assert outcome.results_locked_until is None
    assert "Object" in (outcome.results_lock_error or "")


def test_lock_is_repeated_if_s3_does_not_respond(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_lock(run)
    response: Any = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
    with monkeypatch.context() as patched:
        patched.setattr(
            run.controller.state.data, "lock", Mock(side_effect=ClientError(response, "PutObjectRetention"))
        )
        with pytest.raises(ClientError):
            end(run, "succeeded")
    assert run.cluster.data.find(run.layout.outcome) is None
    assert end(run, "succeeded").results_locked_until is not None


def reserve(run: Run) -> str:
    """Give a run a capacity reservation that ends in two minutes; return its id."""
    reservation = create_reservation(
        REGION,
        instance_type="c7i.xlarge",
        zone="us-east-1a",
        instances=2,
        end=time.time() + 120,
        placement_group_arn=None,
        tags={tags.STACK: run.cluster.stack_tag},
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


def test_run_ends_although_another_controller_has_changed_its_control_file(run: Run) -> None:
    run.cluster.staging.write(CURRENT_RUN, run.record.model_dump_json().encode())
    controller = Controller(run.node, run.cluster.manifest, run.connections)
    controller.step()
    run.cluster.data.write(run.layout.control, Control(attempt=7).model_dump_json().encode())
    outcome = create_outcome(run.controller.state, "stopped", "test")
    run.cluster.data.write(run.layout.outcome, outcome.model_dump_json().encode())
    controller.step()
    controller.step()
    assert run.cluster.describe_group()["DesiredCapacity"] == 0
    assert (run.published.attempt, run.published.stop) == (7, True)


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


def test_end_of_the_run_stops_agents_and_instances(run: Run) -> None:
    run.step("ready", 0)
    end_run(run.controller, create_outcome(run.controller.state, "succeeded", "done"))
    control = run.control()
    assert control is not None
    assert control.stop
    assert run.cluster.describe_group()["DesiredCapacity"] == 0
    assert run.cluster.data.find(run.layout.outcome) is not None


def test_nodes_that_remain_after_the_run_are_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "controller")
    put_termination_hook(run.cluster)
    run.step("ready", 0)
    outcome = create_outcome(run.controller.state, "succeeded", "done")
    end_run(run.controller, outcome)
    run.clock.advance(REMAINING_NODES_WARNING_SECONDS - 1)
    assert not run.controller.end_run(outcome)
    messages = [record.getMessage() for record in caplog.records]
    assert not any("not terminated" in message for message in messages)
    run.clock.advance(1)
    for _ in range(2):
        assert not run.controller.end_run(outcome)
    messages = [record.getMessage() for record in caplog.records]
    (warning,) = (message for message in messages if "not terminated" in message)
    assert all(node in warning for node in run.nodes)


def test_started_job_has_no_startup_deadline(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION))
    run.step("ready", 0)
    run.step("workers_up", 1)
    run.record = run.record.model_copy(update={"created": run.record.created - 3000})
    run.start_controller()
    assert run.controller.step() is None


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


def test_end_of_the_capacity_is_the_reason(account: EmulatedAws) -> None:
    run = Run(create_cluster(REGION), created=time.time() - 600, minutes=9.0)
    outcome = run.controller.step()
    assert outcome is not None
    assert outcome.reason.startswith("the capacity of the run (capacity) was usable until")
