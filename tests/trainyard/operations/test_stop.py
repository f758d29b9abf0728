"""The end of a run and the termination of its nodes."""

import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay, RunInBackground
from trainyard.aws import ec2, placement, tags
from trainyard.aws.reservations import find_reservations
from trainyard.cli.app import app
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.operations import stack_reservations, stop
from trainyard.operations.cluster import Cluster
from trainyard.operations.status import read_status
from trainyard.operations.worker_groups import WorkerGroups

SHUTTING_DOWN_SECONDS = 1200.0


@pytest.fixture(scope="module")
def account(own_account: EmulatedAws) -> EmulatedAws:
    """An account of this file, because the tests advance its clock."""
    return own_account


def hook_of(cluster: clusters.Cluster) -> dict[str, str]:
    return {"AutoScalingGroupName": cluster.group, "LifecycleHookName": "drain"}


@pytest.fixture
def cluster(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[clusters.Cluster]:
    """A cluster whose nodes drain, then shut down for 20 minutes unless the shutdown is skipped."""
    monkeypatch.setattr(stop, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(stop, "STOP_TIMEOUT_SECONDS", 20)
    account.set_timing(Timing(shutting_down_seconds=SHUTTING_DOWN_SECONDS))
    created = clusters.create_cluster(REGION)
    created.autoscaling.put_lifecycle_hook(
        **hook_of(created), LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING", HeartbeatTimeout=30
    )
    yield created
    account.clear_faults()
    account.advance_clock(SHUTTING_DOWN_SECONDS)
    account.set_timing(Timing())


@pytest.fixture
def record(cluster: clusters.Cluster) -> RunRecord:
    """The record of the current run, whose first attempt has not started."""
    new_record = cluster.create_run_record()
    for bucket, key in ((cluster.data, RunLayout(new_record.run).record), (cluster.staging, CURRENT_RUN)):
        bucket.write(key, new_record.model_dump_json().encode())
    return new_record


def start_attempt(cluster: clusters.Cluster, record: RunRecord, failed_at: float | None = None) -> None:
    control = Control(attempt=1, waiting_since=failed_at)
    cluster.data.write(RunLayout(record.run).control, control.model_dump_json().encode())


def end_run(cluster: clusters.Cluster, record: RunRecord, state: str, ended_at: float) -> Outcome:
    outcome = Outcome.model_validate({"state": state, "reason": "done", "attempts": 1, "ended_at": ended_at})
    cluster.data.write(RunLayout(record.run).outcome, outcome.model_dump_json().encode())
    return outcome


def stop_run(cluster: clusters.Cluster) -> tuple[list[str], list[str]]:
    """Stop the run; return the terminated nodes and the lines of the display."""
    display = RecordingDisplay()
    return stop.stop_run(Cluster(cluster.stack, REGION), display).nodes, display.lines


def complete_shutdown(account: EmulatedAws, cluster: clusters.Cluster, run_in_background: RunInBackground) -> None:
    """Complete drain and shutdown of the cluster's instances once they have started."""

    def act() -> bool:
        if cluster.describe_group()["DesiredCapacity"]:
            return False
        account.advance_clock(30 + SHUTTING_DOWN_SECONDS)
        return not cluster.members()

    run_in_background(act)


def test_stop_ends_run_and_nodes_and_can_be_repeated(cluster: clusters.Cluster, record: RunRecord) -> None:
    nodes = cluster.launch_instances(2)
    assert stop_run(cluster)[0] == sorted(nodes)
    assert cluster.members() == []
    outcome = read_status(Cluster(cluster.stack, REGION), None).outcome
    assert outcome is not None
    assert outcome.state == "stopped"
    assert stop_run(cluster) == ([], [])
    assert cluster.describe_group()["MaxSize"] == 0  # the head cannot start nodes


def test_stop_after_the_groups_are_deleted(cluster: clusters.Cluster, record: RunRecord) -> None:
    """An interrupted `destroy` has deleted the groups and not the manifest."""
    cluster.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=cluster.group)
    assert stop_run(cluster)[0] == []


def test_stop_keeps_the_outcome_of_a_run_that_has_ended(cluster: clusters.Cluster, record: RunRecord) -> None:
    outcome = end_run(cluster, record, "succeeded", 1.0)
    stop_run(cluster)
    assert read_status(Cluster(cluster.stack, REGION), None).outcome == outcome


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_nodes_of_a_finished_run_skip_the_shutdown(cluster: clusters.Cluster, record: RunRecord, state: str) -> None:
    start_attempt(cluster, record, failed_at=1.0 if state == "failed" else None)
    end_run(cluster, record, state, time.time() - stop.FLUSH_SECONDS - 1)
    nodes = cluster.launch_instances(2)
    assert stop_run(cluster)[0] == sorted(nodes)


@pytest.mark.parametrize("state", ["running", "stopped", "time limit", "just succeeded"])
def test_nodes_that_may_save_something_shut_down(
    account: EmulatedAws,
    cluster: clusters.Cluster,
    record: RunRecord,
    state: str,
    run_in_background: RunInBackground,
) -> None:
    start_attempt(cluster, record)
    if state == "just succeeded":
        end_run(cluster, record, "succeeded", time.time())
    elif state != "running":
        end_run(cluster, record, "failed" if state == "time limit" else state, 1.0)
    cluster.launch_instances(1)
    complete_shutdown(account, cluster, run_in_background)
    calls = len(account.journal())
    _, lines = stop_run(cluster)
    assert "TerminateInstances" not in {entry.operation for entry in account.journal()[calls:]}
    assert lines[-1].split(":")[0] == "nodes 1 terminated"


def test_draining_nodes_are_displayed(cluster: clusters.Cluster, record: RunRecord) -> None:
    start_attempt(cluster, record)
    node, *_ = cluster.launch_instances(1)
    nodes = stop.StoppingNodes(Cluster(cluster.stack, REGION), RecordingDisplay(), has_unsaved_data=True)
    assert not nodes.terminate()
    assert nodes.states == {node: "draining"}
    cluster.autoscaling.complete_lifecycle_action(**hook_of(cluster), InstanceId=node, LifecycleActionResult="CONTINUE")
    assert not nodes.terminate()
    assert nodes.states == {node: "shutting-down"}


@pytest.mark.parametrize(
    ("lifecycle_state", "previous", "expected"),
    [
        ("Pending", None, "pending"),
        ("InService", None, "running"),
        ("Terminating:Wait", "running", "draining"),
        ("Terminating:Proceed", "shutting-down", "shutting-down"),
        ("Terminating:Proceed", "terminated", "terminated"),
        (None, "shutting-down", "shutting-down"),
    ],
)
def test_node_that_ec2_omits_has_the_state_of_the_group_member(
    lifecycle_state: str | None,
    previous: str | None,
    expected: str,
    cluster: clusters.Cluster,
    record: RunRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = stop.StoppingNodes(Cluster(cluster.stack, REGION), RecordingDisplay(), has_unsaved_data=True)
    nodes.states = {"i-1": previous} if previous else {}
    described = {"i-1": lifecycle_state} if lifecycle_state else {}
    monkeypatch.setattr(ec2, "instance_states", lambda region, names: {})
    monkeypatch.setattr(WorkerGroups, "lifecycle_states", lambda self: described)
    nodes.terminate()
    assert nodes.states == {"i-1": expected}


def test_node_that_ec2_omits_twice_and_that_is_no_member_is_terminated(
    cluster: clusters.Cluster, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = stop.StoppingNodes(Cluster(cluster.stack, REGION), RecordingDisplay(), has_unsaved_data=True)
    nodes.states = {"i-1": "shutting-down"}
    monkeypatch.setattr(ec2, "instance_states", lambda region, names: {})
    assert [nodes.terminate() for _ in range(2)] == [False, True]


def test_group_terminates_nodes_if_the_skip_is_refused(
    account: EmulatedAws, cluster: clusters.Cluster, record: RunRecord, run_in_background: RunInBackground
) -> None:
    account.inject(Deny(operation="ec2:TerminateInstances"))
    nodes = cluster.launch_instances(1)
    complete_shutdown(account, cluster, run_in_background)
    assert stop_run(cluster)[0] == nodes


def test_timeout_names_the_nodes_and_their_states(
    cluster: clusters.Cluster, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "STOP_TIMEOUT_SECONDS", 0)
    start_attempt(cluster, record)
    node, *_ = cluster.launch_instances(1)
    with pytest.raises(TimeoutError, match=rf"1 draining: {node}\): run trainyard stop -s {cluster.stack}"):
        stop_run(cluster)


def test_many_nodes_are_counted(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "MAX_NAMED_NODES", 1)
    nodes = stop.StoppingNodes(Cluster(cluster.stack, REGION), RecordingDisplay(), has_unsaved_data=False)
    nodes.states = {"i-1": "draining", "i-2": "shutting-down", "i-3": "draining"}
    assert nodes.summary == "2 draining, 1 shutting-down"


@pytest.mark.parametrize("operation", ["DescribeCapacityReservations", "DescribePlacementGroups"])
def test_nodes_are_terminated_when_reservations_cannot_be_ended(
    account: EmulatedAws, cluster: clusters.Cluster, record: RunRecord, operation: str
) -> None:
    account.inject(Deny(operation=f"ec2:{operation}"))
    nodes = cluster.launch_instances(2)
    terminated, lines = stop_run(cluster)
    assert terminated == sorted(nodes)
    assert [line for line in lines if line.startswith("capacity") and operation in line]


def test_reservations_are_cancelled_when_the_termination_has_started(
    cluster: clusters.Cluster, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier, a failure would leave the nodes; later, reservations would be billed during the drain."""
    monkeypatch.setattr(stop, "STOP_TIMEOUT_SECONDS", 0)
    name = cluster.hold_capacity(1)
    start_attempt(cluster, record)
    cluster.launch_instances(1)
    with pytest.raises(TimeoutError):
        stop_run(cluster)
    assert name not in [each.id for each in find_reservations(REGION, {})]


@pytest.mark.parametrize(("is_denied", "exit_status"), [(True, 1), (False, 0)])
def test_reservation_that_remains_is_displayed_with_its_price_and_is_a_failure(
    account: EmulatedAws, cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch, is_denied: bool, exit_status: int
) -> None:
    monkeypatch.setattr(stack_reservations, "CANCELLED_TIMEOUT_SECONDS", 0)
    monkeypatch.setenv("AWS_REGION", REGION)
    name = cluster.hold_capacity(2)
    if is_denied:
        account.inject(Deny(operation="ec2:CancelCapacityReservation"))
    result = CliRunner().invoke(app, ["stop", "--stack", cluster.stack])
    account.clear_faults()
    stack_reservations.cancel_reservations_of_stack(REGION, cluster.stack_tag, RecordingDisplay())
    assert result.exit_code == exit_status
    command = f"aws ec2 cancel-capacity-reservation --region {REGION} --capacity-reservation-id {name}"
    assert (command in result.output) == is_denied
    assert ("(2 x c7i.xlarge in us-east-1a) is active and costs 0.36 USD per hour" in result.output) == is_denied


def test_placement_group_of_the_launch_template_is_kept(cluster: clusters.Cluster) -> None:
    """The next launch would fail with InvalidPlacementGroup.Unknown."""
    role = tags.held_capacity_tags(cluster.stack_tag)
    used, _ = (placement.create_cluster_group(REGION, f"{cluster.stack}-{name}", role) for name in "ab")
    (group,) = cluster.manifest.groups
    cluster.set_groups((group.model_copy(update={"placement_group_arn": used.arn}),))
    stop_run(cluster)
    assert placement.find_placement_groups(REGION, role) == [used]
    placement.delete_placement_group(REGION, used.name)
